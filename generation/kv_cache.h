// KvCache: keys and values of running sequences in pages that can be shared and copied.
// L layers, G key/value heads, K head dim.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/core/buffer.h"
#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::generation {

struct KvCacheOptions {
  int64_t num_layers;
  int64_t num_kv_heads;
  int64_t head_dim;
  DType dtype;
  int64_t page_size_tokens;
  int64_t num_pages;
};

// The pages of one sequence and the weights they were computed under.
struct SequencePages {
  std::vector<int32_t> pages;
  int64_t num_tokens = 0;
  uint64_t weights_version = 0;
};

// One thread. Pages are counted by reference: a prompt's full pages are shared by all samples of
// its group.
class KvCache {
 public:
  KvCache(const KvCacheOptions& options, Allocator& allocator);

  int64_t page_size_tokens() const { return options_.page_size_tokens; }
  int64_t num_free_pages() const { return static_cast<int64_t>(free_.size()); }
  const std::vector<Tensor>& keys() const { return keys_; }      // [L] of [num_slots, G, K]
  const std::vector<Tensor>& values() const { return values_; }  // [L] of [num_slots, G, K]

  // An empty sequence under these weights.
  SequencePages begin_sequence(uint64_t weights_version) const;
  // Makes room for `count` more tokens; the sequence's last page must be its own. Throws
  // InternalError when the cache is full: callers admit only what fits.
  void extend(SequencePages& sequence, int64_t count);
  // Further sequences with the content of each of these: full pages shared, a partly filled last
  // page copied. Both throw before they change anything.
  std::vector<SequencePages> fork(std::span<const SequencePages* const> sequences, OpContext& ctx);
  void release(SequencePages& sequence);
  // Forgets every sequence, after an exception lost track of some; their SequencePages are void.
  void release_all();

  // Cache slot of token `position` of a sequence.
  int32_t slot(const SequencePages& sequence, int64_t position) const;
  // An InternalError when the pages were computed under other weights than `weights_version`.
  static void check_version(const SequencePages& sequence, uint64_t weights_version);

 private:
  bool last_page_is_partial(const SequencePages& sequence) const;
  void check_free(int64_t num_pages) const;
  int32_t take_page();

  KvCacheOptions options_;
  OwnedTensor storage_;  // [2 L, num_slots, G, K]
  std::vector<Tensor> keys_;
  std::vector<Tensor> values_;
  std::vector<int32_t> free_;
  std::vector<int32_t> references_;  // per page
};

}  // namespace grpo::generation
