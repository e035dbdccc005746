#include "generation/kv_cache.h"

#include <algorithm>

#include "model/ops/page_copy.h"

namespace grpo::generation {

KvCache::KvCache(const KvCacheOptions& options, Allocator& allocator)
    : options_(options), references_(static_cast<size_t>(options.num_pages), 0) {
  const int64_t num_slots = options.num_pages * options.page_size_tokens;
  CHECK(num_slots < (int64_t{1} << 31), "KV cache of {} slots", num_slots);
  storage_ =
      OwnedTensor(allocator, "kv_cache", options.dtype,
                  {2 * options.num_layers, num_slots, options.num_kv_heads, options.head_dim});
  const Shape layer_shape{num_slots, options.num_kv_heads, options.head_dim};
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    keys_.push_back(storage_.view().rows(2 * layer, 1).reshaped(layer_shape));
    values_.push_back(storage_.view().rows(2 * layer + 1, 1).reshaped(layer_shape));
  }
  release_all();
}

void KvCache::release_all() {
  std::fill(references_.begin(), references_.end(), 0);
  free_.clear();
  for (int64_t page = options_.num_pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

SequencePages KvCache::begin_sequence(uint64_t weights_version) const {
  SequencePages sequence;
  sequence.weights_version = weights_version;
  return sequence;
}

void KvCache::check_free(int64_t num_pages) const {
  CHECK(num_pages <= num_free_pages(), "the KV cache is full: {} of {} pages free, {} wanted",
        num_free_pages(), options_.num_pages, num_pages);
}

int32_t KvCache::take_page() {
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void KvCache::extend(SequencePages& sequence, int64_t count) {
  const int64_t used = sequence.num_tokens % options_.page_size_tokens;
  CHECK(used == 0 || count == 0 || references_[static_cast<size_t>(sequence.pages.back())] == 1,
        "a shared page is about to be written");
  const int64_t num_tokens = sequence.num_tokens + count;
  const int64_t num_pages =
      (num_tokens + options_.page_size_tokens - 1) / options_.page_size_tokens;
  const int64_t num_new = num_pages - static_cast<int64_t>(sequence.pages.size());
  check_free(num_new);
  sequence.num_tokens = num_tokens;
  for (int64_t i = 0; i < num_new; ++i) sequence.pages.push_back(take_page());
}

bool KvCache::last_page_is_partial(const SequencePages& sequence) const {
  return sequence.num_tokens % options_.page_size_tokens != 0;
}

std::vector<SequencePages> KvCache::fork(std::span<const SequencePages* const> sequences,
                                         OpContext& ctx) {
  check_free(std::count_if(sequences.begin(), sequences.end(), [&](const SequencePages* sequence) {
    return last_page_is_partial(*sequence);
  }));
  std::vector<SequencePages> forks;
  std::vector<ops::PageCopy> copies;
  for (const SequencePages* sequence : sequences) {
    SequencePages& fork = forks.emplace_back(*sequence);
    const size_t num_shared = fork.pages.size() - (last_page_is_partial(fork) ? 1 : 0);
    for (size_t i = 0; i < num_shared; ++i) ++references_[static_cast<size_t>(fork.pages[i])];
    if (num_shared == fork.pages.size()) continue;
    const int32_t page = take_page();
    copies.push_back({.destination = page, .source = fork.pages.back()});
    fork.pages.back() = page;
  }
  const Tensor& storage = storage_.view();
  ops::copy_pages(storage.reshaped({storage.size(0), options_.num_pages,
                                    storage.num_elements() / storage.size(0) / options_.num_pages}),
                  copies, ctx);
  return forks;
}

void KvCache::release(SequencePages& sequence) {
  for (const int32_t page : sequence.pages) {
    if (--references_[static_cast<size_t>(page)] == 0) free_.push_back(page);
  }
  sequence = SequencePages();
}

int32_t KvCache::slot(const SequencePages& sequence, int64_t position) const {
  const int64_t page = position / options_.page_size_tokens;
  CHECK(position >= 0 && position < sequence.num_tokens, "position {} of {}", position,
        sequence.num_tokens);
  return static_cast<int32_t>(sequence.pages[static_cast<size_t>(page)] *
                                  options_.page_size_tokens +
                              position % options_.page_size_tokens);
}

void KvCache::check_version(const SequencePages& sequence, uint64_t weights_version) {
  CHECK(sequence.weights_version == weights_version,
        "stale KV: computed under weights version {}, used under {}", sequence.weights_version,
        weights_version);
}

}  // namespace grpo::generation
