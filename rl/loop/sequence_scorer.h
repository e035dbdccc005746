// Log-probabilities of rollout sequences under a sharded model: forward-only passes, dealt over the
// data ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/transformer.h"
#include "parallel/layout/process_groups.h"
#include "rl/loop/rollout.h"

namespace grpo::rl {

// By sequence, then response token.
struct SequenceLogprobs {
  std::vector<std::vector<float>> processed;  // over the stored cuts
  std::vector<std::vector<float>> unfiltered;
};

struct ScorerOptions {
  float inv_temperature;
  int64_t max_tokens;          // of a micro-batch
  model::CutCheck* cut_check;  // null: not checked; counts this rank's sequences
};

// Collective over groups.data; every rank receives every sequence's values.
SequenceLogprobs score_sequences(model::Transformer& transformer,
                                 const parallel::ProcessGroups& groups,
                                 std::span<const RolloutSequence> sequences,
                                 const ScorerOptions& options, OpContext& ctx);

// A micro-batch as the model takes it; an empty one becomes a single token that predicts nothing,
// so that every rank runs the same collectives.
model::PackedBatch pack_rollout(const std::vector<const RolloutSequence*>& sequences,
                                Allocator& allocator);

}  // namespace grpo::rl
