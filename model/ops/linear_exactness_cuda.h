// CUDA implementation of check_linear_exactness of linear.h; operands are checked.
#pragma once

#include "model/ops/linear.h"

namespace grpo::ops {

void check_linear_exactness_cuda(const Tensor& weight, const Tensor& bias, DType product,
                                 int64_t max_rows, OpContext& ctx);

}  // namespace grpo::ops
