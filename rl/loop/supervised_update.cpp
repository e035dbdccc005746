#include "rl/loop/supervised_update.h"

#include <cmath>
#include <functional>
#include <span>

#include "model/core/host_transfer.h"
#include "parallel/comm/host_collectives.h"
#include "rl/loop/policy_loss.h"

namespace grpo::rl {

namespace {

// A micro-batch as the model takes it; an empty one becomes a token that predicts nothing.
model::PackedBatch pack_examples(const std::vector<SupervisedExample>& examples,
                                 const MicroBatch& micro_batch, Allocator& allocator) {
  static const std::vector<int32_t> nothing{0};
  std::vector<model::PackedSequence> packed;
  for (const size_t index : micro_batch) {
    packed.push_back({.tokens = examples[index].tokens,
                      .first_target = examples[index].first_target,
                      .kept = {}});
  }
  if (packed.empty()) packed.push_back({.tokens = nothing, .first_target = 1, .kept = {}});
  return model::PackedBatch(packed, allocator);
}

// Runs `pass` on this rank's micro-batches, which returns the log-probabilities of their learnt
// tokens, and adds those of all ranks by example.
double sum_nll(const parallel::ProcessGroups& groups,
               const std::vector<SupervisedExample>& examples, const MicroBatchRule& rule,
               OpContext& ctx,
               const std::function<std::vector<float>(const model::PackedBatch&)>& pass) {
  std::vector<int64_t> lengths;
  lengths.reserve(examples.size());
  for (const SupervisedExample& example : examples) lengths.push_back(example.num_tokens());
  const parallel::AxisGroup& data = groups.data;
  const auto dealt = deal_micro_batches(lengths, data_ranks(groups), rule);
  std::vector<int64_t> own_indices;
  std::vector<double> own_sums;
  for (const MicroBatch& micro_batch : dealt[static_cast<size_t>(data.rank())]) {
    const model::PackedBatch batch =
        pack_examples(examples, micro_batch, ctx.workspace.allocator());
    const std::vector<float> logprobs = pass(batch);
    for (size_t s = 0; s < micro_batch.size(); ++s) {
      double sum = 0;
      for (int64_t row = batch.predicted_offsets[s]; row < batch.predicted_offsets[s + 1]; ++row) {
        sum -= static_cast<double>(logprobs[static_cast<size_t>(row)]);
      }
      own_indices.push_back(static_cast<int64_t>(micro_batch[s]));
      own_sums.push_back(sum);
    }
  }
  const auto indices = parallel::all_gather_vector(data.communicator(), own_indices);
  const auto sums = parallel::all_gather_vector(data.communicator(), own_sums);
  std::vector<double> by_example(examples.size());
  for (size_t rank = 0; rank < indices.size(); ++rank) {
    for (size_t i = 0; i < indices[rank].size(); ++i) {
      by_example[static_cast<size_t>(indices[rank][i])] = sums[rank][i];
    }
  }
  double total = 0;
  for (const double sum : by_example) total += sum;
  return total;
}

}  // namespace

SupervisedResult update_supervised(model::Transformer& policy,
                                   parallel::ShardedParameterStore& store, Optimizer& optimizer,
                                   const std::vector<SupervisedExample>& examples,
                                   const SupervisedOptions& options, OpContext& ctx) {
  const double targets = num_targets(examples);
  store.zero_gradients();
  const double sum =
      sum_nll(store.groups(), examples, options.micro_batches, ctx, [&](const auto& batch) {
        NllLoss nll(targets);
        policy.train(batch, 1.0f, nll, nullptr, ctx);
        return nll.logprobs();
      });
  SupervisedResult result{.loss = sum / targets, .grad_norm = 0};
  if (!std::isfinite(result.loss)) throw NonFiniteError(fmt::format("the loss is {}", result.loss));
  store.reduce_gradients();
  result.grad_norm = optimizer.gradient_norm(ctx);
  optimizer.step(options.learning_rate, result.grad_norm, options.max_grad_norm, ctx);
  return result;
}

double supervised_nll(model::Transformer& policy, const parallel::ProcessGroups& groups,
                      const std::vector<SupervisedExample>& examples, int64_t max_tokens,
                      OpContext& ctx) {
  const MicroBatchRule rule{.max_tokens = max_tokens, .multiple = 1};
  return sum_nll(groups, examples, rule, ctx, [&](const model::PackedBatch& batch) {
    const Workspace::Scope scope(ctx.workspace);
    const int64_t rows = batch.num_predicted();
    const Tensor both = ctx.workspace.take(DType::kFloat32, {2 * rows});
    policy.score({.processed = both.rows(0, rows), .unfiltered = both.rows(rows, rows)}, batch,
                 1.0f, nullptr, ctx);
    return to_host<float>(both.rows(0, rows), ctx.stream);
  });
}

}  // namespace grpo::rl
