// CPU implementations behind rope.h; operands are checked, positions and slots are not.
#pragma once

#include "model/core/tensor.h"

namespace grpo::ops {

template <typename A>
void qkv_rope_forward_cpu(const Tensor& q, const Tensor& keys, const Tensor& values,
                          const Tensor& qkv, const Tensor& positions, const Tensor& table);
template <typename A>
void qkv_rope_backward_cpu(const Tensor& dqkv, const Tensor& dq, const Tensor& dkeys,
                           const Tensor& dvalues, const Tensor& positions, const Tensor& table);

}  // namespace grpo::ops
