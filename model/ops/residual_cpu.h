// CPU implementation behind residual.h; operands are checked.
#pragma once

#include "model/core/tensor.h"

namespace grpo::ops {

template <typename A>
void residual_add_cpu(const Tensor& out, const Tensor& a, const Tensor& b);

}  // namespace grpo::ops
