#include "rl/loop/policy_update.h"

#include <cmath>

#include "parallel/comm/host_collectives.h"
#include "rl/loop/sequence_scorer.h"

namespace grpo::rl {

namespace {

LossCounts count_tokens(std::span<const RolloutSequence> sequences) {
  LossCounts counts{.valid_tokens = 0,
                    .valid_sequences = static_cast<double>(sequences.size()),
                    .positive_tokens = 0,
                    .denominator_epsilon = 0};
  for (const RolloutSequence& sequence : sequences) {
    const auto tokens = static_cast<double>(sequence.response_tokens.size());
    counts.valid_tokens += tokens;
    if (sequence.reward > 0) counts.positive_tokens += tokens;
  }
  return counts;
}

// What a rank found out about its own sequences.
struct OwnResults {
  std::vector<int64_t> indices;
  std::vector<LossSums> sums;   // one an index
  std::vector<float> logprobs;  // of the indices' sequences, end to end
};

OwnResults train_own(const LossConfig& loss_config, const LossCounts& counts,
                     model::Transformer& policy, const std::vector<MicroBatch>& micro_batches,
                     std::span<const RolloutSequence> sequences,
                     std::span<const SequenceSignals> signals, const UpdateOptions& options,
                     OpContext& ctx) {
  OwnResults own;
  for (const MicroBatch& micro_batch : micro_batches) {
    std::vector<const RolloutSequence*> members;
    std::vector<const SequenceSignals*> member_signals;
    for (const size_t index : micro_batch) {
      members.push_back(&sequences[index]);
      member_signals.push_back(&signals[index]);
    }
    const model::PackedBatch batch = pack_rollout(members, ctx.workspace.allocator());
    PolicyLoss loss(loss_config, counts, batch, members, member_signals);
    policy.train(batch, options.inv_temperature, loss, options.cut_check, ctx);
    const std::vector<LossSums> sums = loss.sequence_sums();
    for (size_t s = 0; s < micro_batch.size(); ++s) {
      own.indices.push_back(static_cast<int64_t>(micro_batch[s]));
      own.sums.push_back(sums[s]);
      const std::span<const float> logprobs = loss.logprobs(s);
      own.logprobs.insert(own.logprobs.end(), logprobs.begin(), logprobs.end());
    }
  }
  return own;
}

// Sums in the sequences' own order, so that no layout changes a bit.
void merge_results(const OwnResults& own, std::span<const RolloutSequence> sequences,
                   const LossConfig& loss, Communicator& data, UpdateResult& result) {
  const auto indices = parallel::all_gather_vector(data, own.indices);
  const auto sums = parallel::all_gather_vector(data, own.sums);
  const auto logprobs = parallel::all_gather_vector(data, own.logprobs);
  std::vector<LossSums> by_sequence(sequences.size());
  result.logprobs.resize(sequences.size());
  for (size_t rank = 0; rank < indices.size(); ++rank) {
    auto next = logprobs[rank].begin();
    for (size_t i = 0; i < indices[rank].size(); ++i) {
      const auto index = static_cast<size_t>(indices[rank][i]);
      by_sequence[index] = sums[rank][i];
      const auto count = static_cast<int64_t>(sequences[index].response_tokens.size());
      result.logprobs[index].assign(next, next + count);
      next += count;
    }
  }
  LossSums total;
  for (const LossSums& one : by_sequence) total.add(one);
  result.averages = average_loss(loss, total, result.counts);
}

}  // namespace

UpdateResult update_policy(const LossConfig& loss, model::Transformer& policy,
                           parallel::ShardedParameterStore& store, Optimizer& optimizer,
                           std::span<const RolloutSequence> sequences,
                           std::span<const SequenceSignals> signals, const UpdateOptions& options,
                           OpContext& ctx) {
  UpdateResult result;
  result.counts = count_tokens(sequences);
  std::vector<int64_t> lengths;
  lengths.reserve(sequences.size());
  for (const RolloutSequence& sequence : sequences) lengths.push_back(sequence.length());
  const parallel::AxisGroup& data = store.groups().data;
  const auto dealt = deal_micro_batches(lengths, data_ranks(store.groups()), options.micro_batches);
  store.zero_gradients();
  const OwnResults own =
      train_own(loss, result.counts, policy, dealt[static_cast<size_t>(data.rank())], sequences,
                signals, options, ctx);
  merge_results(own, sequences, loss, data.communicator(), result);
  if (!std::isfinite(result.averages.loss)) {
    throw NonFiniteError(fmt::format("the loss is {}", result.averages.loss));
  }
  store.reduce_gradients();
  result.grad_norm = optimizer.gradient_norm(ctx);
  optimizer.step(options.learning_rate, result.grad_norm, options.max_grad_norm, ctx);
  return result;
}

}  // namespace grpo::rl
