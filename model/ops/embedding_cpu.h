// CPU implementations behind embedding.h; operands are checked, token ids are not.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

template <typename A>
void embedding_forward_cpu(const Tensor& out, const Tensor& tokens, const Tensor& weight);
template <typename A>
void embedding_backward_cpu(const Tensor& dweight, const Tensor& dout, const Tensor& tokens,
                            bool accumulate, OpContext& ctx);

}  // namespace grpo::ops
