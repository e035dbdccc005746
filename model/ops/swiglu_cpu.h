// CPU implementations behind swiglu.h; operands are checked.
#pragma once

#include "model/core/tensor.h"

namespace grpo::ops {

template <typename A>
void swiglu_forward_cpu(const Tensor& out, const Tensor& gate_up);
template <typename A>
void swiglu_backward_cpu(const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up);

}  // namespace grpo::ops
