// cpu_math.h's functions on the device, operation by operation, so that both devices give the same
// bits.
#pragma once

#include <cuda_runtime.h>

namespace grpo::ops::cuda {

// e^x before its scaling by a power of 2: the polynomial's value, and the bits of a float that
// count up with the exponent.
struct UnscaledExp {
  float value;
  unsigned exponent_bits;
};
constexpr float kExpRoundingShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer

__device__ inline UnscaledExp unscaled_exp(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693145751953125f;
  constexpr float kLn2Low = 1.42860682030941723e-6f;
  const float shifted = __fmaf_rn(x, kLog2E, kExpRoundingShift);
  const float n = __fsub_rn(shifted, kExpRoundingShift);
  float r = __fmaf_rn(n, -kLn2High, x);
  r = __fmaf_rn(n, -kLn2Low, r);
  float p = 1.0f / 5040.0f;
  p = __fmaf_rn(p, r, 1.0f / 720.0f);
  p = __fmaf_rn(p, r, 1.0f / 120.0f);
  p = __fmaf_rn(p, r, 1.0f / 24.0f);
  p = __fmaf_rn(p, r, 1.0f / 6.0f);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(p, r, 1.0f);
  p = __fmaf_rn(p, r, 1.0f);
  return {p, __float_as_uint(shifted)};
}

// e^x within 1 ulp; see exp_float.
__device__ inline float exp_cuda(float x) {
  x = x < -105.0f ? -105.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const UnscaledExp unscaled = unscaled_exp(x);
  // 2^n in two factors, so that neither over- nor underflows before the result does.
  const int exponent =
      static_cast<int>(unscaled.exponent_bits - __float_as_uint(kExpRoundingShift));
  const int half = exponent >> 1;
  const float scale1 = __uint_as_float((static_cast<unsigned>(half) + 127u) << 23);
  const float scale2 = __uint_as_float((static_cast<unsigned>(exponent - half) + 127u) << 23);
  return __fmul_rn(__fmul_rn(unscaled.value, scale1), scale2);
}

// exp_cuda's bits for x <= 0 and NaN, in fewer instructions: such an n is at least -152, so that
// 2^(n + 64) is no subnormal, and 2^-64 rounds once. The rounding shift's own bits leave at the
// top.
__device__ inline float exp_nonpositive_cuda(float x) {
  x = x < -105.0f ? -105.0f : x;
  const UnscaledExp unscaled = unscaled_exp(x);
  const float scale = __uint_as_float((unscaled.exponent_bits << 23) + ((127u + 64u) << 23));
  return __fmul_rn(__fmul_rn(unscaled.value, scale), 0x1p-64f);
}

// 1 / (1 + e^-x), the bits that exp_cuda gives: below e^-87 the sum is 1, and half of e^89 is
// finite.
__device__ inline float sigmoid_cuda(float x) {
  float y = -x;
  y = y < -87.0f ? -87.0f : y;
  y = y > 89.0f ? 89.0f : y;
  const UnscaledExp unscaled = unscaled_exp(y);
  const float half_scale = __uint_as_float((unscaled.exponent_bits << 23) + (126u << 23));
  return __frcp_rn(__fmaf_rn(__fmul_rn(unscaled.value, half_scale), 2.0f, 1.0f));
}

// log of a normal positive number or of 0; see log_double.
__device__ inline double log_cuda(double x) {
  constexpr int kTerms = 11;
  constexpr double kLn2High = 0x1.62e42fefa38p-1;
  constexpr double kLn2Low = 0x1.ef35793c7673p-45;
  if (x == 0.0) return __longlong_as_double(0xfff0000000000000LL);
  const unsigned long long bits = static_cast<unsigned long long>(__double_as_longlong(x));
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double significand = __longlong_as_double(
      static_cast<long long>((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL));
  if (significand > 1.4142135623730951) {
    significand = __dmul_rn(significand, 0.5);
    ++exponent;
  }
  const double f = __dadd_rn(significand, -1.0);
  const double s = __ddiv_rn(f, __dadd_rn(f, 2.0));
  const double square = __dmul_rn(s, s);
  double series = 1.0 / (2 * kTerms + 1);
#pragma unroll
  for (int term = kTerms - 1; term >= 1; --term) {
    series = __fma_rn(series, square, 1.0 / (2 * term + 1));
  }
  const double n = exponent;
  const double twice = __dmul_rn(2.0, s);
  const double small = __fma_rn(__dmul_rn(twice, square), series, __dmul_rn(n, kLn2Low));
  return __dadd_rn(__dmul_rn(n, kLn2High), __dadd_rn(twice, small));
}

}  // namespace grpo::ops::cuda
