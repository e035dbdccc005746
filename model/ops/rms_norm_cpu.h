// CPU implementations behind rms_norm.h; operands are checked.
#pragma once

#include "model/ops/rms_norm.h"

namespace grpo::ops {

template <typename A>
void rms_norm_forward_cpu(const Tensor& out, const Tensor& rstd, const Tensor& x,
                          const Tensor& weight, float epsilon);
template <typename A>
void residual_rms_norm_forward_cpu(const NormedSum& out, const Tensor& x, const Tensor& addend,
                                   const Tensor& weight, float epsilon);
template <typename A>
void rms_norm_backward_cpu(const RmsNormGradients& gradients, const Tensor& dout, const Tensor& x,
                           const Tensor& weight, const Tensor& rstd);

}  // namespace grpo::ops
