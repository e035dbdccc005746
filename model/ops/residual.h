// Residual addition: out = a + b in fp32, rounded once. out may be a or b.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

void residual_add(const Tensor& out,  // any shape, float32 or bfloat16
                  const Tensor& a,    // same shape and dtype
                  const Tensor& b,    // same shape and dtype
                  OpContext& ctx);

}  // namespace grpo::ops
