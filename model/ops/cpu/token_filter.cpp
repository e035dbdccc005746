#include "model/ops/cpu/token_filter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "model/core/errors.h"

namespace grpo::ops::cpu {

namespace {

// Tokens in a first guess of how many top-p keeps; grows fourfold.
constexpr int64_t kFirstChunk = 256;

// An integer that ascends with z descending, then token ascending.
uint64_t rank_key(float z, int64_t token) {
  const auto bits = std::bit_cast<uint32_t>(z + 0.0f);  // -0 and 0 tie
  const uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(token);
}

int32_t token_of(uint64_t key) { return static_cast<int32_t>(key & 0xffffffffu); }

// Keeps the token of a key and all that come before it.
RowCut cut_after(const LogitsRow& row, uint64_t key) {
  const int32_t token = token_of(key);
  const float z = row.scaled(token) + 0.0f;
  return {std::nextafter(z, std::numeric_limits<float>::infinity()), z, token};
}

RowCut top_k_cut(const LogitsRow& row, int64_t top_k, uint64_t* keys) {
  std::nth_element(keys, keys + (top_k - 1), keys + row.size);
  return cut_after(row, keys[top_k - 1]);
}

// exp(z - max) in fixed point.
uint64_t fixed_point_weight(float z, float max) {
  return static_cast<uint64_t>(std::llrint(exp_float(z - max) * kFixedPointOne));
}

// Walks the kept tokens from the most probable on, sorting only as many as it needs.
RowCut top_p_cut(const LogitsRow& row, double top_p, float max, const RowCut& cut, uint64_t* keys) {
  uint64_t* const end = std::partition(keys, keys + row.size, [&](uint64_t key) {
    return cut.keeps(row.scaled(token_of(key)), token_of(key));
  });
  uint64_t total = 0;
  for (const uint64_t* key = keys; key < end; ++key) {
    total += fixed_point_weight(row.scaled(token_of(*key)), max);
  }
  const uint64_t wanted =
      std::min(total, static_cast<uint64_t>(std::ceil(top_p * static_cast<double>(total))));
  uint64_t mass = 0;
  int64_t chunk = kFirstChunk;
  for (uint64_t* begin = keys; begin < end; chunk *= 4) {
    uint64_t* const chunk_end = begin + std::min<int64_t>(chunk, end - begin);
    if (chunk_end != end) std::nth_element(begin, chunk_end, end);
    std::sort(begin, chunk_end);
    for (; begin < chunk_end; ++begin) {
      mass += fixed_point_weight(row.scaled(token_of(*begin)), max);
      if (mass >= wanted) return cut_after(row, *begin);
    }
  }
  throw InternalError(fmt::format("top-p found a mass of {} of {}", mass, wanted));
}

}  // namespace

RowCut filter_row(const LogitsRow& row, float max, const SamplingFilter& filter,
                  Workspace& workspace) {
  const bool has_top_k = filter.top_k > 0 && filter.top_k < row.size;
  const bool has_top_p = filter.top_p < 1.0;
  if (!has_top_k && !has_top_p) return {};
  const Workspace::Scope scope(workspace);
  auto* keys = static_cast<uint64_t*>(workspace.take(DType::kInt64, {row.size}).raw());
  if (workspace.allocator().device().is_rehearsal) return {};
  for (int64_t v = 0; v < row.size; ++v) keys[v] = rank_key(row.scaled(v), v);
  const RowCut cut = has_top_k ? top_k_cut(row, filter.top_k, keys) : RowCut{};
  if (!has_top_p) return cut;
  return top_p_cut(row, filter.top_p, max, cut, keys);
}

void append_kept(KeptTokens& kept, const LogitsRow& row, const RowCut& cut,
                 const SoftmaxStatistics& all, int32_t max_kept_ids) {
  std::vector<uint32_t> ids;
  KeptBorder border{.last_kept = std::numeric_limits<float>::infinity(),
                    .first_dropped = -std::numeric_limits<float>::infinity(),
                    .last_kept_token = cut.last_tie,
                    .log_sum_exp = static_cast<double>(all.max) + log_double(all.sum)};
  for (int64_t v = 0; v < row.size; ++v) {
    const float z = row.scaled(v) + 0.0f;
    if (cut.keeps(z, static_cast<int32_t>(v))) {
      border.last_kept = std::min(border.last_kept, z);
      ids.push_back(static_cast<uint32_t>(v));
    } else {
      border.first_dropped = std::max(border.first_dropped, z);
    }
  }
  if (static_cast<int64_t>(ids.size()) == row.size) return kept.append_threshold({});
  const KeptThreshold threshold = threshold_at(border);
  const bool is_small = static_cast<int64_t>(ids.size()) <= max_kept_ids;
  if (is_small || !separates(threshold, border)) return kept.append_ids(ids);
  kept.append_threshold(threshold);
}

}  // namespace grpo::ops::cpu
