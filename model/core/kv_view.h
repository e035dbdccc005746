// KvView: where the keys and values of a set of sequences live. Training points it at packed
// activations, generation at cache pages; attention walks both the same way.
#pragma once

#include <cstdint>

#include "model/core/tensor.h"

namespace grpo {

// H_kv key/value heads, K head dim, S sequences, P most pages of a sequence, T query rows.
// Key j of sequence s is slot page_first_slot[s][j / page_size_tokens] + j % page_size_tokens.
struct KvView {
  Tensor keys;             // [num_slots, H_kv, K]
  Tensor values;           // [num_slots, H_kv, K]
  Tensor query_offsets;    // [S + 1] int32: query rows of sequence s are [offsets[s], offsets[s+1])
  Tensor context_lengths;  // [S] int32: keys of the sequence, those of its query rows included
  Tensor page_first_slot;  // [S, P] int32
  int64_t page_size_tokens;
  // What the host knows of the tensors above, to size launches without reading them back.
  int64_t max_query_rows;      // most query rows of a sequence
  int64_t max_context_tokens;  // longest context
};

}  // namespace grpo
