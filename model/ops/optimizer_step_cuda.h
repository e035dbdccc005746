// CUDA implementations behind optimizer_step.h; operands are checked.
#pragma once

#include "model/ops/optimizer_step.h"

namespace grpo::ops {

void adamw_step_cuda(const AdamWState& state, const Tensor& weight, const Tensor& gradient,
                     const AdamWScalars& scalars, OpContext& ctx);
void sgd_step_cuda(const Tensor& master, const Tensor& weight, const Tensor& gradient,
                   const SgdScalars& scalars, OpContext& ctx);

}  // namespace grpo::ops
