// Sequences for the attention tests: whole sequences packed, and any cut of them into passes over a
// paged cache. T rows, S sequences, H query heads, G key/value heads, K head dim.
#pragma once

#include <algorithm>
#include <vector>

#include "model/ops/attention.h"
#include "tests/ops/op_test.h"

namespace grpo::ops {

struct AttentionSizes {
  int64_t heads, kv_heads, head_dim;
};

// All sequences one after another: [T, H, K], [T, G, K], [T, G, K].
struct PackedSequences {
  std::vector<int32_t> lengths;
  Tensor q, keys, values;

  int64_t num_rows() const { return q.size(0); }
  int64_t first_row(size_t sequence) const {
    int64_t row = 0;
    for (size_t s = 0; s < sequence; ++s) row += lengths[s];
    return row;
  }
};

inline PackedSequences random_sequences(OpTestTensors& tensors, DType dtype,
                                        const std::vector<int32_t>& lengths,
                                        const AttentionSizes& sizes) {
  int64_t rows = 0;
  for (const int32_t length : lengths) rows += length;
  return {lengths, tensors.random(dtype, {rows, sizes.heads, sizes.head_dim}, 2.0),
          tensors.random(dtype, {rows, sizes.kv_heads, sizes.head_dim}),
          tensors.random(dtype, {rows, sizes.kv_heads, sizes.head_dim})};
}

// Keys and values are the packed rows themselves.
inline KvView packed_view(OpTestTensors& tensors, const PackedSequences& sequences) {
  const auto count = static_cast<int64_t>(sequences.lengths.size());
  std::vector<int32_t> offsets{0};
  for (const int32_t length : sequences.lengths) offsets.push_back(offsets.back() + length);
  const int64_t longest = *std::max_element(sequences.lengths.begin(), sequences.lengths.end());
  return {sequences.keys,
          sequences.values,
          tensors.ints({count + 1}, offsets),
          tensors.ints({count}, sequences.lengths),
          tensors.ints({count, 1}, {offsets.begin(), offsets.end() - 1}),
          std::max<int64_t>(longest, 1),
          longest,
          longest};
}

// A cache of pages, dealt to the sequences in an order of its own; slots without a key hold NaN.
class PagedCache {
 public:
  PagedCache(OpTestTensors& tensors, const PackedSequences& sequences, int64_t page_size)
      : tensors_(tensors), sequences_(sequences), page_size_(page_size) {
    int64_t num_pages = 1;  // page 0 belongs to no one
    for (const int32_t length : sequences.lengths) {
      const int64_t pages = (length + page_size - 1) / page_size;
      max_pages_ = std::max(max_pages_, pages);
      num_pages += pages;
    }
    const Tensor& keys = sequences.keys;
    const Shape slots{num_pages * page_size, keys.size(1), keys.size(2)};
    keys_ = tensors.make(keys.dtype(), slots);
    values_ = tensors.make(keys.dtype(), slots);
    // The last page goes to the first sequence's first key, and so on down.
    int64_t next = num_pages - 1;
    for (const int32_t length : sequences.lengths) {
      std::vector<int32_t>& pages = pages_.emplace_back();
      for (int64_t key = 0; key < length; key += page_size) {
        pages.push_back(static_cast<int32_t>(next-- * page_size));
      }
    }
  }

  // Writes keys [begin, end) of a sequence to their slots.
  void append(size_t sequence, int64_t begin, int64_t end) {
    for (int64_t key = begin; key < end; ++key) {
      const int64_t slot =
          pages_[sequence][static_cast<size_t>(key / page_size_)] + key % page_size_;
      const int64_t row = sequences_.first_row(sequence) + key;
      copy_tensor(keys_.rows(slot, 1), sequences_.keys.rows(row, 1));
      copy_tensor(values_.rows(slot, 1), sequences_.values.rows(row, 1));
    }
  }

  // Query rows of sequence s are its keys [begins[s], ends[s]); none where they are equal.
  KvView view(const std::vector<int64_t>& begins, const std::vector<int64_t>& ends) {
    const auto count = static_cast<int64_t>(begins.size());
    std::vector<int32_t> offsets{0};
    std::vector<int32_t> lengths;
    std::vector<int32_t> slots;
    int64_t most_rows = 0;
    int64_t longest = 0;
    for (size_t s = 0; s < begins.size(); ++s) {
      most_rows = std::max(most_rows, ends[s] - begins[s]);
      longest = std::max(longest, ends[s]);
      offsets.push_back(offsets.back() + static_cast<int32_t>(ends[s] - begins[s]));
      lengths.push_back(static_cast<int32_t>(ends[s]));
      std::vector<int32_t> row = pages_[s];
      row.resize(static_cast<size_t>(max_pages_), -1);
      slots.insert(slots.end(), row.begin(), row.end());
    }
    return {keys_,
            values_,
            tensors_.ints({count + 1}, offsets),
            tensors_.ints({count}, lengths),
            tensors_.ints({count, max_pages_}, slots),
            page_size_,
            most_rows,
            longest};
  }

 private:
  OpTestTensors& tensors_;
  const PackedSequences& sequences_;
  int64_t page_size_;
  int64_t max_pages_ = 1;
  Tensor keys_, values_;
  std::vector<std::vector<int32_t>> pages_;
};

}  // namespace grpo::ops
