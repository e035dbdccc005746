// PolicyUpdate: one optimizer update on a fixed set of rollout sequences: deal, forward, loss,
// backward, reduce, clip, step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/transformer.h"
#include "parallel/store/sharded_parameter_store.h"
#include "rl/data/work_division.h"
#include "rl/loop/policy_loss.h"
#include "rl/loop/rollout.h"
#include "rl/models/optimizer.h"
#include "rl/objective/loss.h"

namespace grpo::rl {

struct UpdateOptions {
  float inv_temperature;
  MicroBatchRule micro_batches;
  double learning_rate;
  double max_grad_norm;
  model::CutCheck* cut_check;  // null: not checked
};

struct UpdateResult {
  LossSums averages;  // over the update's sequences, added in their order
  LossCounts counts;
  double grad_norm;
  std::vector<std::vector<float>> logprobs;  // of the training forward, by sequence; on every rank
};

// Collective over the store's groups. Throws NonFiniteError for a loss or gradient that is not
// finite.
UpdateResult update_policy(const LossConfig& loss, model::Transformer& policy,
                           parallel::ShardedParameterStore& store, Optimizer& optimizer,
                           std::span<const RolloutSequence> sequences,
                           std::span<const SequenceSignals> signals, const UpdateOptions& options,
                           OpContext& ctx);

}  // namespace grpo::rl
