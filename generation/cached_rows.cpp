#include "generation/cached_rows.h"

#include <algorithm>

#include "model/core/host_transfer.h"

namespace grpo::generation {

namespace {

struct RowCounts {
  int64_t rows = 0;
  int64_t logit_rows = 0;
  int64_t max_pages = 1;
  int64_t max_query_rows = 0;
  int64_t max_context_tokens = 0;
};

RowCounts count_rows(std::span<const SequenceRows> sequences) {
  RowCounts counts;
  for (const SequenceRows& sequence : sequences) {
    const auto rows = static_cast<int64_t>(sequence.tokens.size());
    counts.rows += rows;
    counts.logit_rows += sequence.wants_logits ? 1 : 0;
    counts.max_pages =
        std::max(counts.max_pages, static_cast<int64_t>(sequence.pages->pages.size()));
    counts.max_query_rows = std::max(counts.max_query_rows, rows);
    counts.max_context_tokens = std::max(counts.max_context_tokens, sequence.pages->num_tokens);
  }
  return counts;
}

// Index arrays of the forward, on the host. S sequences, N rows.
struct RowArrays {
  RowArrays(const RowCounts& counts, int64_t num_sequences)
      : token_ids(arrays.add({counts.rows})),
        places(arrays.add({counts.rows, 2})),
        offsets(arrays.add({num_sequences + 1})),
        lengths(arrays.add({num_sequences})),
        first_slots(arrays.add({num_sequences, counts.max_pages})),
        logit_rows(arrays.add({counts.logit_rows})) {}

  HostInt32Arrays arrays;
  std::span<int32_t> token_ids;    // [N]
  std::span<int32_t> places;       // [N, 2]: position, slot
  std::span<int32_t> offsets;      // [S + 1]
  std::span<int32_t> lengths;      // [S]
  std::span<int32_t> first_slots;  // [S, pages]
  std::span<int32_t> logit_rows;
};

void fill_arrays(RowArrays& to, const KvCache& cache, std::span<const SequenceRows> sequences,
                 size_t max_pages) {
  size_t row = 0;
  size_t logit_row = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequencePages& pages = *sequences[s].pages;
    to.offsets[s] = static_cast<int32_t>(row);
    to.lengths[s] = static_cast<int32_t>(pages.num_tokens);
    const std::span<int32_t> slots = to.first_slots.subspan(s * max_pages);
    for (size_t p = 0; p < pages.pages.size(); ++p) {
      slots[p] = static_cast<int32_t>(pages.pages[p] * cache.page_size_tokens());
    }
    int64_t position = pages.num_tokens - static_cast<int64_t>(sequences[s].tokens.size());
    for (const int32_t token : sequences[s].tokens) {
      to.token_ids[row] = token;
      to.places[2 * row] = static_cast<int32_t>(position);
      to.places[2 * row + 1] = cache.slot(pages, position);
      ++row;
      ++position;
    }
    if (sequences[s].wants_logits) to.logit_rows[logit_row++] = static_cast<int32_t>(row) - 1;
  }
  to.offsets[sequences.size()] = static_cast<int32_t>(row);
}

}  // namespace

model::CachedRows place_rows(KvCache& cache, std::vector<SequenceRows> sequences,
                             uint64_t weights_version, const RowPadding& padding, OpContext& ctx) {
  for (const SequenceRows& sequence : sequences) {
    KvCache::check_version(*sequence.pages, weights_version);
    cache.extend(*sequence.pages, static_cast<int64_t>(sequence.tokens.size()));
  }
  if (std::ssize(sequences) < padding.num_sequences) {
    CHECK(!sequences.empty() && sequences[0].tokens.size() == 1);
    const SequenceRows first = sequences[0];
    sequences.resize(static_cast<size_t>(padding.num_sequences), first);
  }
  RowCounts counts = count_rows(sequences);
  if (counts.max_pages <= padding.num_pages) {
    counts.max_pages = padding.num_pages;
    counts.max_context_tokens = padding.num_pages * cache.page_size_tokens();
  }
  RowArrays arrays(counts, static_cast<int64_t>(sequences.size()));
  fill_arrays(arrays, cache, sequences, static_cast<size_t>(counts.max_pages));
  const std::vector<Tensor> uploaded = arrays.arrays.upload(
      ctx.workspace.take(DType::kInt32, {arrays.arrays.num_elements()}), ctx.stream);
  return {.tokens = uploaded[0],
          .positions = uploaded[1],
          .kv = {.keys = {},
                 .values = {},
                 .query_offsets = uploaded[2],
                 .context_lengths = uploaded[3],
                 .page_first_slot = uploaded[4],
                 .page_size_tokens = cache.page_size_tokens(),
                 .max_query_rows = counts.max_query_rows,
                 .max_context_tokens = counts.max_context_tokens},
          .keys = cache.keys(),
          .values = cache.values(),
          .logit_rows = uploaded[5]};
}

}  // namespace grpo::generation
