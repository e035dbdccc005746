// How far an operator may be from a float64 evaluation of its formula on the same (already rounded)
// inputs: |actual - expected| <= tolerance * largest |expected| of the tensor. One entry a kind of
// arithmetic.
#pragma once

#include "model/core/dtype.h"

namespace grpo::ops {

struct Tolerance {
  double float32;
  double bfloat16;  // results stored in bfloat16

  double of(DType dtype) const { return dtype == DType::kBfloat16 ? bfloat16 : float32; }
};

// bfloat16 keeps 8 significant bits: one rounding is off by at most 2^-8 of the element itself; 1 %
// more for fp32 arithmetic that lands on the other side of a tie. Operators round once, where a
// tensor is stored.
constexpr double kOneBfloat16Rounding = 1.01 / 256.0;

// A few fp32 operations an element (residual, SwiGLU, RoPE): some 2^-24 each.
constexpr Tolerance kElementwise{1e-6, kOneBfloat16Rounding};
// fp32 chains of up to 300 products: error grows like sqrt(n) 2^-24 of the sum of magnitudes, which
// is a few times the largest result for random operands.
constexpr Tolerance kDotProduct{4e-6, kOneBfloat16Rounding};
// Tensor cores cut off what they add to an fp32 sum, 2^-23 of it for each 16 products, instead of
// rounding: over K = 4864 some 1e-5.
constexpr Tolerance kTensorCoreProduct{2e-5, kOneBfloat16Rounding};
// The same of a gradient that is rounded to bfloat16 on its way in: 2^-9 of each term.
constexpr Tolerance kRoundedGradientProduct{3e-3, kOneBfloat16Rounding + 1.0 / 512.0};
// Row sums of squares or products, then a few operations.
constexpr Tolerance kNorm{4e-6, kOneBfloat16Rounding};
// Two chained products with exponentials between them.
constexpr Tolerance kAttention{4e-6, kOneBfloat16Rounding};
// On tensor cores: the softmax weights are rounded to bfloat16 (2^-9 of each term), the result
// again.
constexpr Tolerance kTensorCoreAttention{1e-5, kOneBfloat16Rounding + 1.0 / 512.0};
// Also depends on the stored output (delta = sum dout out): in bfloat16 its rounding, 2^-9 of each
// term, enters every score's gradient and adds up over the keys.
constexpr Tolerance kAttentionGradient{2e-5, 1.5e-2};
// Log-probabilities: one fp32 exponential (1 ulp) an element, sums in double, one rounding. Also
// the golden file's own bound, whose source divides by the temperature in float32.
constexpr double kLogprob = 1e-6;
// Softmax weights are fp32 products of an exponential and a factor.
constexpr double kLogprobGradient = 1e-6;
// AdamW in fp32 against float64 over six steps: each step rounds the master once (2^-24 of about 2)
// and an update of at most 1e-2 a few times.
constexpr double kAdamW = 1e-6;
// exp_float in units in the last place.
constexpr double kExpUlps = 1.0;
// log_double likewise: the quotient's rounding and three more.
constexpr double kLogUlps = 2.0;

}  // namespace grpo::ops
