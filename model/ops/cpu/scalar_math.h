// Scalar float functions of the CPU operators, written so that loops over them vectorise and every
// caller, vectorised or not, gets the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace grpo::ops::cpu {

// e^x within 1 ulp. 0 below -104, infinity above 88.73, NaN for NaN; exactly 1 at 0. Cody-Waite
// reduction by ln 2, then Taylor's polynomial of degree 7, whose remainder on [-ln2/2, ln2/2] is
// 0.1 ulp.
inline float exp_float(float x) {
  constexpr float kRoundingShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693145751953125f;
  constexpr float kLn2Low = 1.42860682030941723e-6f;
  x = x < -105.0f ? -105.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = std::fma(x, kLog2E, kRoundingShift);
  const float n = shifted - kRoundingShift;
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = 1.0f / 5040.0f;
  p = std::fma(p, r, 1.0f / 720.0f);
  p = std::fma(p, r, 1.0f / 120.0f);
  p = std::fma(p, r, 1.0f / 24.0f);
  p = std::fma(p, r, 1.0f / 6.0f);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  // 2^n in two factors, so that neither over- nor underflows before the result does. The bits of
  // `shifted` count up with n (whatever they are for NaN, the product stays NaN).
  const uint32_t whole = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRoundingShift);
  const auto exponent = static_cast<int32_t>(whole);
  const int32_t half = exponent >> 1;
  const float scale1 = std::bit_cast<float>((static_cast<uint32_t>(half) + 127u) << 23);
  const float scale2 = std::bit_cast<float>((static_cast<uint32_t>(exponent - half) + 127u) << 23);
  return p * scale1 * scale2;
}

// 1 / (1 + e^-x).
inline float sigmoid(float x) { return 1.0f / (1.0f + exp_float(-x)); }

// log of a normal positive number or of 0, within 2 ulp: ln 2 times the exponent, and the series of
// 2 atanh(f / (2 + f)) for the significand 1 + f in [sqrt(1/2), sqrt(2)), whose first dropped term
// is below 2^-57 of the result.
inline double log_double(double x) {
  constexpr int kTerms = 11;
  constexpr double kLn2High = 0x1.62e42fefa38p-1;  // times an exponent is exact
  constexpr double kLn2Low = 0x1.ef35793c7673p-45;
  if (x == 0.0) return -std::numeric_limits<double>::infinity();
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int32_t>(bits >> 52) - 1023;
  double significand = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
  if (significand > 1.4142135623730951) {
    significand *= 0.5;
    ++exponent;
  }
  const double f = significand - 1.0;
  const double s = f / (f + 2.0);
  const double square = s * s;
  double series = 1.0 / (2 * kTerms + 1);
  for (int term = kTerms - 1; term >= 1; --term) {
    series = std::fma(series, square, 1.0 / (2 * term + 1));
  }
  const double n = exponent;
  const double small = std::fma(2.0 * s * square, series, n * kLn2Low);
  return n * kLn2High + (2.0 * s + small);
}

}  // namespace grpo::ops::cpu
