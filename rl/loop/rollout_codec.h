// Rollout sequences as bytes, for the exchange between ranks of one run (same program, same byte
// order).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "rl/loop/rollout.h"

namespace grpo::rl {

std::vector<std::byte> encode_sequences(const std::vector<RolloutSequence>& sequences);
// An InternalError when the bytes are not a whole number of sequences.
std::vector<RolloutSequence> decode_sequences(std::span<const std::byte> bytes);

}  // namespace grpo::rl
