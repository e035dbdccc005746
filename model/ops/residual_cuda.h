// CUDA implementations behind residual.h; operands are checked.
#pragma once

#include "model/ops/residual.h"

namespace grpo::ops {

void residual_add_cuda(const Tensor& out, const Tensor& a, const Tensor& b, OpContext& ctx);

}  // namespace grpo::ops
