#include "rl/warm_start.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "parallel/host_collectives.h"
#include "rl/optimizer.h"
#include "rl/policy_loss.h"
#include "rl/work_division.h"

namespace grpo::rl {

namespace {

struct SupervisedExample {
  std::vector<int32_t> tokens;
  int64_t first_target;
};

std::vector<SupervisedExample> draw_examples(const RunConfig& config, const PromptDataset& dataset,
                                             int32_t end_token, int64_t step) {
  std::vector<SupervisedExample> examples;
  for (int64_t i = 0; i < config.warm_start.global_batch_size; ++i) {
    const PromptExample& example =
        dataset.at_position(step * config.warm_start.global_batch_size + i,
                            static_cast<uint64_t>(config.grpo.seed));
    SupervisedExample supervised{.tokens = example.prompt_tokens,
                                 .first_target = static_cast<int64_t>(example.prompt_tokens.size())};
    supervised.tokens.insert(supervised.tokens.end(), example.response_tokens.begin(),
                             example.response_tokens.end());
    supervised.tokens.push_back(end_token);
    examples.push_back(std::move(supervised));
  }
  return examples;
}

// Forward and backward of this rank's micro-batches; its share of the mean loss.
double train_share(const std::vector<SupervisedExample>& examples,
                   const std::vector<MicroBatch>& micro_batches, double num_targets,
                   model::Transformer& policy, OpContext& ctx) {
  double loss = 0;
  const std::vector<int32_t> nothing{0};
  for (const MicroBatch& micro_batch : micro_batches) {
    std::vector<model::PackedSequence> packed;
    for (const size_t index : micro_batch) {
      packed.push_back({.tokens = examples[index].tokens,
                        .first_target = examples[index].first_target,
                        .cuts = {}});
    }
    if (packed.empty()) packed.push_back({.tokens = nothing, .first_target = 1, .cuts = {}});
    const model::PackedBatch batch(packed, ctx.workspace.allocator());
    NllLoss nll(num_targets);
    policy.train(batch, 1.0f, nll, nullptr, ctx);
    loss += nll.loss();
  }
  return loss;
}

}  // namespace

double warm_start(const RunConfig& config, const PromptDataset& dataset, int32_t end_token,
                  model::Transformer& policy, parallel::ShardedParameterStore& store,
                  RunObserver* observer, const std::atomic<bool>& stop_requested, OpContext& ctx) {
  Optimizer optimizer(config.policy.optimizer, store, ctx.workspace.allocator());
  const parallel::AxisGroup& data = store.groups().data;
  const int64_t num_steps = config.warm_start.num_steps;
  const int64_t report_every = std::max<int64_t>(1, num_steps / 5);
  double loss = 0;
  for (int64_t step = 0; step < num_steps; ++step) {
    if (parallel::any_rank(data.communicator(), stop_requested.load())) break;
    const std::vector<SupervisedExample> examples = draw_examples(config, dataset, end_token, step);
    std::vector<int64_t> lengths;
    double num_targets = 0;
    for (const SupervisedExample& example : examples) {
      lengths.push_back(static_cast<int64_t>(example.tokens.size()));
      num_targets += static_cast<double>(lengths.back() - example.first_target);
    }
    const auto dealt =
        deal_micro_batches(lengths, data.size(), config.policy.sequence_packing.train_mb_tokens);
    store.zero_gradients();
    const double share = train_share(examples, dealt[static_cast<size_t>(data.rank())], num_targets,
                                     policy, ctx);
    loss = 0;
    for (const double part : parallel::all_gather_double(data.communicator(), share)) loss += part;
    if (!std::isfinite(loss)) throw NonFiniteError(fmt::format("the warm start's loss is {}", loss));
    store.reduce_gradients();
    const double norm = optimizer.gradient_norm(ctx);
    optimizer.step(config.warm_start.lr, norm, config.policy.max_grad_norm, ctx);
    const bool reports = (step + 1) % report_every == 0 || step + 1 == num_steps;
    if (observer != nullptr && reports) {
      observer->on_message(fmt::format("warm start {}/{}: negative log-likelihood {:.4f}", step + 1,
                                       num_steps, loss));
    }
  }
  return loss;
}

}  // namespace grpo::rl
