// CUDA implementation of the bias gradient of linear.h; operands are checked.
#pragma once

#include "model/ops/linear.h"

namespace grpo::ops {

void linear_backward_bias_cuda(const Tensor& dbias, const Tensor& dout, bool accumulate,
                               OpContext& ctx);

}  // namespace grpo::ops
