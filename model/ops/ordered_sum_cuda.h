// CUDA implementation behind ordered_sum.h; operands are checked.
#pragma once

#include <span>

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// Up to kMaxRowsAtOnce rows.
void ordered_sum_cuda(const Tensor& out, std::span<const Tensor> rows, OpContext& ctx);

}  // namespace grpo::ops
