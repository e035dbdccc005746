// How sequences are dealt to ranks and micro-batches: functions of counts and lengths alone, the
// same on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace grpo::rl {

// Indices into the update's sequences, ascending. An empty one is a pass of weight zero.
using MicroBatch = std::vector<size_t>;

// [rank][micro-batch]; every rank has the same number of micro-batches (at least one). A sequence
// goes to exactly one rank; a micro-batch holds at most `max_tokens` tokens. Longest first, to the
// rank with the fewest tokens. Lengths above max_tokens are an InternalError.
std::vector<std::vector<MicroBatch>> deal_micro_batches(std::span<const int64_t> lengths,
                                                        int num_ranks, int64_t max_tokens);

// The contiguous share of `total` things that belongs to a rank: [first, second).
std::pair<int64_t, int64_t> contiguous_share(int64_t total, int num_ranks, int rank);

}  // namespace grpo::rl
