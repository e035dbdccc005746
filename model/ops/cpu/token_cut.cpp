#include "model/ops/cpu/token_cut.h"

#include <algorithm>
#include <bit>
#include <cmath>

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

// Ties with the k-th are all kept.
TokenCut top_k_cut(const LogitsRow& row, int64_t top_k, uint64_t* keys) {
  std::nth_element(keys, keys + (top_k - 1), keys + row.size);
  return {row.scaled(token_of(keys[top_k - 1])) + 0.0f, std::numeric_limits<int32_t>::max()};
}

// exp(z - max) in fixed point.
uint64_t fixed_point_weight(float z, float max) {
  return static_cast<uint64_t>(std::llrint(exp_float(z - max) * kFixedPointOne));
}

// Walks the kept tokens from the most probable on, sorting only as many as it needs.
TokenCut top_p_cut(const LogitsRow& row, double top_p, float max, const TokenCut& cut,
                   uint64_t* keys) {
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
      const int32_t token = token_of(*begin);
      const float z = row.scaled(token);
      mass += fixed_point_weight(z, max);
      if (mass >= wanted) return {z + 0.0f, token};
    }
  }
  throw InternalError(fmt::format("top-p found a mass of {} of {}", mass, wanted));
}

}  // namespace

TokenCut row_cut(const LogitsRow& row, float max, const SamplingFilter& filter,
                 Workspace& workspace) {
  const bool has_top_k = filter.top_k > 0 && filter.top_k < row.size;
  const bool has_top_p = filter.top_p < 1.0;
  if (!has_top_k && !has_top_p) return {};
  const Workspace::Scope scope(workspace);
  auto* keys = static_cast<uint64_t*>(workspace.take(DType::kInt64, {row.size}).raw());
  if (workspace.allocator().device().is_rehearsal) return {};
  for (int64_t v = 0; v < row.size; ++v) keys[v] = rank_key(row.scaled(v), v);
  const TokenCut cut = has_top_k ? top_k_cut(row, filter.top_k, keys) : TokenCut{};
  if (!has_top_p) return cut;
  return top_p_cut(row, filter.top_p, max, cut, keys);
}

}  // namespace grpo::ops::cpu
