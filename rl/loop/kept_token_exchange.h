// Brings the sampling filters' kept tokens from the rank that drew a sequence to the rank that
// works on it; no other rank receives them.
#pragma once

#include <span>
#include <vector>

#include "model/core/communicator.h"
#include "rl/data/work_division.h"
#include "rl/loop/rollout.h"

namespace grpo::rl {

// Collective over `data`, whose ranks are numbered as those that drew the sequences. `assigned` is
// [rank][micro-batch], the same on every rank. Afterwards this rank holds the kept tokens of the
// sequences assigned to it, of those that have any.
void deliver_kept_tokens(std::span<RolloutSequence> sequences,
                         const std::vector<std::vector<MicroBatch>>& assigned, Communicator& data);

}  // namespace grpo::rl
