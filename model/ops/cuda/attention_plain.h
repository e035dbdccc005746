// Attention on CUDA cores in float32, for both dtypes and every head dim: the CPU's operations in
// the CPU's order, so that both give the same bits. For checks and small models; the tensor cores'
// kernels stand in attention_forward.cu and attention_backward.cu.
#pragma once

#include "model/ops/attention.h"

namespace grpo::ops::cuda {

void attention_forward_plain(const Tensor& out, const Tensor& lse, const Tensor& q,
                             const KvView& kv, float scale, OpContext& ctx);
void attention_backward_plain(const AttentionGradients& gradients, const Tensor& dout,
                              const AttentionSaved& saved, const KvView& kv, float scale,
                              OpContext& ctx);

}  // namespace grpo::ops::cuda
