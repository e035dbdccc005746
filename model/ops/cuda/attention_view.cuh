// A KvView and the shape of its queries as attention's kernels take them. A "row" of a sequence and
// key/value head is one query head of the group at one position; rows count positions outermost.
// H query heads, G key/value heads, K head dim, R = H / G.
#pragma once

#include "model/ops/attention.h"
#include "model/ops/cuda/element_groups.cuh"

namespace grpo::ops::cuda {

struct AttentionView {
  const int32_t* query_offsets;
  const int32_t* context_lengths;
  const int32_t* page_first_slot;
  int max_pages;
  int page_size;
  int num_sequences;
  int kv_heads;               // G
  int group;                  // R
  int head_dim;               // K
  unsigned group_reciprocal;  // 2^32 / R, rounded up; for R above 1

  // Positions before that of row `row`: row / R in one multiplication.
  __device__ int positions_before(int row) const {
    return group == 1 ? row
                      : static_cast<int>(__umulhi(static_cast<unsigned>(row), group_reciprocal));
  }
};

// A quotient by the reciprocal is exact up to dividends of 2^32 / R; kernels look at rows up to a
// block behind a sequence's end.
inline unsigned group_reciprocal(int64_t group, int64_t max_query_rows) {
  constexpr int64_t kTwoTo32 = int64_t{1} << 32;
  constexpr int64_t kBlockRows = 1024;
  CHECK((max_query_rows * group + kBlockRows) * group < kTwoTo32,
        "attention over {} rows of a sequence, {} heads a group", max_query_rows, group);
  return static_cast<unsigned>(ceil_div(kTwoTo32, group));
}

inline AttentionView attention_view(const Tensor& q, const KvView& kv) {
  CHECK(q.size(0) * q.size(1) <= std::numeric_limits<int>::max() / 4 &&
            kv.keys.size(0) <= std::numeric_limits<int>::max(),
        "attention over {} rows of {} heads and {} slots", q.size(0), q.size(1), kv.keys.size(0));
  const int64_t group = q.size(1) / kv.keys.size(1);
  return {.query_offsets = kv.query_offsets.data<int32_t>(),
          .context_lengths = kv.context_lengths.data<int32_t>(),
          .page_first_slot = kv.page_first_slot.data<int32_t>(),
          .max_pages = static_cast<int>(kv.page_first_slot.size(1)),
          // Longer pages than the context are one page, whatever their size.
          .page_size = static_cast<int>(
              std::min<int64_t>(kv.page_size_tokens, std::numeric_limits<int>::max() / 2)),
          .num_sequences = static_cast<int>(kv.context_lengths.size(0)),
          .kv_heads = static_cast<int>(kv.keys.size(1)),
          .group = static_cast<int>(group),
          .head_dim = static_cast<int>(q.size(2)),
          .group_reciprocal = group_reciprocal(group, kv.max_query_rows)};
}

// One sequence: its query rows stand at positions first_position, first_position + 1, ...
struct DeviceSequence {
  int first_query;  // index into the packed queries
  int num_queries;
  int first_position;
  int length;  // keys
  const int32_t* pages;
  int page_size;

  __device__ DeviceSequence(const AttentionView& view, int sequence) {
    first_query = view.query_offsets[sequence];
    num_queries = view.query_offsets[sequence + 1] - first_query;
    length = view.context_lengths[sequence];
    first_position = length - num_queries;
    pages = view.page_first_slot + static_cast<int64_t>(sequence) * view.max_pages;
    page_size = view.page_size;
  }

  __device__ int64_t slot(int key) const {
    return static_cast<int64_t>(pages[key / page_size]) + key % page_size;
  }
};

// Index of row `row` of key/value head `head` into [T, H].
__device__ inline int64_t query_index(const AttentionView& view, const DeviceSequence& sequence,
                                      int head, int row) {
  const int position = view.positions_before(row);
  const int heads = view.kv_heads * view.group;
  return (sequence.first_query + position) * heads + head * view.group + row -
         position * view.group;
}

// The sequence that query t belongs to.
__device__ inline int sequence_of_query(const AttentionView& view, int t) {
  int low = 0;
  int high = view.num_sequences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (view.query_offsets[middle] <= t) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace grpo::ops::cuda
