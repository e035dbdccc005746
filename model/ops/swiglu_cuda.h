// CUDA implementations behind swiglu.h; operands are checked.
#pragma once

#include "model/ops/swiglu.h"

namespace grpo::ops {

void swiglu_forward_cuda(const Tensor& out, const Tensor& gate_up, OpContext& ctx);
void swiglu_backward_cuda(const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up,
                          OpContext& ctx);

}  // namespace grpo::ops
