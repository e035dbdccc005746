// RMSNorm (Zhang & Sennrich, 2019): out = x / sqrt(mean(x^2) + epsilon) * weight.
// T tokens, D model. A is float32 or bfloat16. The sum of squares has a fixed tree, whatever T.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

void rms_norm_forward(const Tensor& out,     // [T, D] A
                      const Tensor& rstd,    // [T] float32, or absent when no backward follows
                      const Tensor& x,       // [T, D] A
                      const Tensor& weight,  // [D] A
                      float epsilon, OpContext& ctx);

struct NormedSum {
  Tensor sum;     // [T, D] A, may be x
  Tensor normed;  // [T, D] A
  Tensor rstd;    // [T] float32, or absent
};

// Residual addition and the norm of what it gives: sum = x + addend in fp32, rounded once, then as
// rms_norm_forward of it.
void residual_rms_norm_forward(const NormedSum& out,
                               const Tensor& x,       // [T, D] A
                               const Tensor& addend,  // [T, D] A
                               const Tensor& weight,  // [D] A
                               float epsilon, OpContext& ctx);

struct RmsNormGradients {
  Tensor dx;           // [T, D] A
  bool accumulate_dx;  // add to dx (the residual's gradient) instead of overwriting
  Tensor dweight;      // [D] float32
  bool accumulate_dweight;
};

void rms_norm_backward(const RmsNormGradients& gradients,
                       const Tensor& dout,    // [T, D] A
                       const Tensor& x,       // [T, D] A
                       const Tensor& weight,  // [D] A
                       const Tensor& rstd,    // [T] float32
                       OpContext& ctx);

}  // namespace grpo::ops
