// CUDA implementations behind rms_norm.h; operands are checked.
#pragma once

#include "model/ops/rms_norm.h"

namespace grpo::ops {

void rms_norm_forward_cuda(const Tensor& out, const Tensor& rstd, const Tensor& x,
                           const Tensor& weight, float epsilon, OpContext& ctx);
void residual_rms_norm_forward_cuda(const NormedSum& out, const Tensor& x, const Tensor& addend,
                                    const Tensor& weight, float epsilon, OpContext& ctx);
void rms_norm_backward_cuda(const RmsNormGradients& gradients, const Tensor& dout, const Tensor& x,
                            const Tensor& weight, const Tensor& rstd, OpContext& ctx);

}  // namespace grpo::ops
