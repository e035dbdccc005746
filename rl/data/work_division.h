// How sequences are dealt to ranks and micro-batches: functions of counts and lengths alone, the
// same on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "parallel/layout/process_groups.h"

namespace grpo::rl {

// Indices into the update's sequences, ascending. An empty one is a pass of weight zero.
using MicroBatch = std::vector<size_t>;

// Data ranks as a group of them counts: gtp_remat fastest.
struct DataRanks {
  int gtp_remat;
  int dp;

  int size() const { return gtp_remat * dp; }
};

DataRanks data_ranks(const parallel::ProcessGroups& groups);

struct MicroBatchRule {
  int64_t max_tokens;  // of one
  int64_t multiple;    // a replica's are opened by multiples of so many; 1 or more
};

// At least so many micro-batches share the sequences, some perhaps empty: for every replica the
// smallest multiple that gives each of its gtp_remat ranks one.
int64_t least_micro_batches(const DataRanks& ranks, const MicroBatchRule& rule);

// [rank][micro-batch]; every rank has the same number of micro-batches (at least one). A sequence
// goes to exactly one rank; a micro-batch holds at most max_tokens tokens. Longest first, to the
// micro-batch with the fewest tokens; where it does not fit, least_micro_batches() more are opened.
// A replica's micro-batches go to its gtp_remat ranks in turn, so that the i-th passes of all ranks
// are the next ones of an order which is the same for every gtp_remat up to rule.multiple. Lengths
// above max_tokens are an InternalError.
std::vector<std::vector<MicroBatch>> deal_micro_batches(std::span<const int64_t> lengths,
                                                        const DataRanks& ranks,
                                                        const MicroBatchRule& rule);

// The contiguous share of `total` things that belongs to a rank: [first, second).
std::pair<int64_t, int64_t> contiguous_share(int64_t total, int num_ranks, int rank);

}  // namespace grpo::rl
