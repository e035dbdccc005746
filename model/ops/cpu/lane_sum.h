// Sums along a row in a fixed order: 16 partial sums by index modulo 16, joined by a fixed tree.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace grpo::ops::cpu {

constexpr int kSumLanes = 16;

// The tree over 2^n partial sums: halves added elementwise until one is left.
template <size_t kCount>
inline float tree_sum(std::array<float, kCount> sums) {
  static_assert((kCount & (kCount - 1)) == 0);
  for (size_t half = kCount / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// sum over i in [0, count) of a(i) * b(i) with fused multiply-adds; a and b map an index to a
// float.
template <typename FirstFactor, typename SecondFactor>
inline float lane_dot(int64_t count, FirstFactor&& a, SecondFactor&& b) {
  std::array<float, kSumLanes> sums{};
  const int64_t whole = count / kSumLanes * kSumLanes;
  for (int64_t i = 0; i < whole; i += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) {
      const auto l = static_cast<size_t>(lane);
      sums[l] = std::fma(a(i + lane), b(i + lane), sums[l]);
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    const auto l = static_cast<size_t>(i - whole);
    sums[l] = std::fma(a(i), b(i), sums[l]);
  }
  return tree_sum(sums);
}

}  // namespace grpo::ops::cpu
