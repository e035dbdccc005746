// What attention's forward and backward share on the CPU: sequences of a KvView and packed tiles of
// keys. H query heads, G key/value heads, K head dim, padded to whole panels in scratch memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/core/kv_view.h"
#include "model/ops/attention.h"
#include "model/ops/cpu/panel_product.h"

namespace grpo::ops::cpu {

static_assert(kAttentionTileKeys == kPanelColumns, "a tile of keys is one panel of scores");

// Query rows worked on together; they share the packing of a tile.
constexpr int64_t kAttentionRowBlock = 64;

inline int64_t padded_head_dim(int64_t head_dim) {
  return (head_dim + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}

// One sequence of a KvView: its query rows are [first_row, first_row + num_rows) and stand at
// positions first_position, first_position + 1, ...
struct AttentionSequence {
  int64_t first_row;
  int64_t num_rows;
  int64_t first_position;
  const int32_t* page_first_slot;
  int64_t page_size_tokens;

  AttentionSequence(const KvView& kv, int64_t sequence)
      : first_row(kv.query_offsets.data<int32_t>()[sequence]),
        num_rows(kv.query_offsets.data<int32_t>()[sequence + 1] - first_row),
        first_position(kv.context_lengths.data<int32_t>()[sequence] - num_rows),
        page_first_slot(kv.page_first_slot.data<int32_t>() + sequence * kv.page_first_slot.size(1)),
        page_size_tokens(kv.page_size_tokens) {}

  int64_t slot(int64_t key) const {
    return page_first_slot[key / page_size_tokens] + key % page_size_tokens;
  }
  int64_t length() const { return first_position + num_rows; }
};

// Copies keys [first, first + count) of one head from slots [num_slots, G, K] to
// [kAttentionTileKeys][K padded], zeros where there is no key.
template <typename A>
void pack_tile_rows(float* packed, const Tensor& slots, int64_t head,
                    const AttentionSequence& sequence, int64_t first, int64_t count) {
  const int64_t head_dim = slots.size(2);
  const int64_t stride = padded_head_dim(head_dim);
  std::fill_n(packed, kAttentionTileKeys * stride, 0.0f);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t slot = sequence.slot(first + j);
    copy_block(packed + j * stride, stride,
               slots.data<A>() + (slot * slots.size(1) + head) * head_dim, head_dim, 1, head_dim);
  }
}

// The same tile transposed: [K][kAttentionTileKeys].
inline void transpose_tile(float* transposed, const float* packed, int64_t head_dim) {
  transpose_block(transposed, kAttentionTileKeys, packed, padded_head_dim(head_dim),
                  kAttentionTileKeys, head_dim);
}

}  // namespace grpo::ops::cpu
