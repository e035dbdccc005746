// CUDA implementations behind rope.h; operands are checked, positions and slots are not.
#pragma once

#include "model/ops/rope.h"

namespace grpo::ops {

void qkv_rope_forward_cuda(const Tensor& q, const Tensor& keys, const Tensor& values,
                           const Tensor& qkv, const Tensor& positions, const Tensor& table,
                           OpContext& ctx);
void qkv_rope_backward_cuda(const Tensor& dqkv, const Tensor& dq, const Tensor& dkeys,
                            const Tensor& dvalues, const Tensor& positions, const Tensor& table,
                            OpContext& ctx);

}  // namespace grpo::ops
