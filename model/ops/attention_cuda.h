// CUDA implementations behind attention.h; operands are checked.
#pragma once

#include "model/ops/attention.h"

namespace grpo::ops {

void attention_forward_cuda(const Tensor& out, const Tensor& lse, const Tensor& q, const KvView& kv,
                            float scale, OpContext& ctx);
void attention_backward_cuda(const AttentionGradients& gradients, const Tensor& dout,
                             const AttentionSaved& saved, const KvView& kv, float scale,
                             OpContext& ctx);

}  // namespace grpo::ops
