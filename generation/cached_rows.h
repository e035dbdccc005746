// The rows of one forward over the KV cache, as the transformer takes them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generation/kv_cache.h"
#include "model/transformer.h"

namespace grpo::generation {

// Tokens of one sequence that run in this forward.
struct SequenceRows {
  SequencePages* pages;
  std::span<const int32_t> tokens;  // they follow what the pages hold
  bool wants_logits;                // of the last of them
};

// Sizes that shapes are brought up to, so that forwards repeat them.
struct RowPadding {
  // For sequences of one row each: further ones repeat the first, and write what it writes.
  int64_t num_sequences = 0;
  // Columns of the page table; then max_context_tokens is what they hold.
  int64_t num_pages = 0;
};

// Makes room for the tokens and describes their rows, in order, in the workspace. `logit_rows` are
// those that want logits. Throws InternalError for pages of other weights than `weights_version`.
model::CachedRows place_rows(KvCache& cache, std::vector<SequenceRows> sequences,
                             uint64_t weights_version, const RowPadding& padding, OpContext& ctx);

}  // namespace grpo::generation
