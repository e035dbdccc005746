// CPU implementations behind optimizer_step.h; operands are checked. W is the compute weights'
// dtype.
#pragma once

#include "model/ops/optimizer_step.h"

namespace grpo::ops {

template <typename W>
void adamw_step_cpu(const AdamWState& state, const Tensor& weight, const Tensor& gradient,
                    const AdamWScalars& scalars);
template <typename W>
void sgd_step_cpu(const Tensor& master, const Tensor& weight, const Tensor& gradient,
                  const SgdScalars& scalars);

}  // namespace grpo::ops
