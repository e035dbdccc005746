// CPU implementations behind attention.h; operands are checked, and so are the sequences of the
// KvView.
#pragma once

#include "model/core/kv_view.h"
#include "model/ops/attention.h"

namespace grpo::ops {

template <typename A>
void attention_forward_cpu(const Tensor& out, const Tensor& lse, const Tensor& q, const KvView& kv,
                           float scale, OpContext& ctx);
template <typename A>
void attention_backward_cpu(const AttentionGradients& gradients, const Tensor& dout,
                            const AttentionSaved& saved, const KvView& kv, float scale,
                            OpContext& ctx);

}  // namespace grpo::ops
