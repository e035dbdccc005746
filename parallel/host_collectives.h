// Collectives on host values of any size, for what every rank must know: completions, sums, flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/core/communicator.h"

namespace grpo::parallel {

// Every member's bytes, in rank order.
std::vector<std::vector<std::byte>> all_gather_bytes(Communicator& group, std::span<const std::byte> bytes);

// Every member's value, in rank order.
std::vector<double> all_gather_double(Communicator& group, double value);

// True on every member when it is true on any.
bool any_rank(Communicator& group, bool value);

}  // namespace grpo::parallel
