// CPU implementations behind log_softmax.h; operands are checked, targets are not.
#pragma once

#include "model/ops/log_softmax.h"

namespace grpo::ops {

void compute_cuts_cpu(TokenCut* cuts, const Tensor& logits, const SamplingFilter& filter,
                      OpContext& ctx);
void token_logprobs_cpu(const TokenLogprobs& out, const Tensor& logits, const Tensor& targets,
                        const TokenCut* cuts, float inv_temperature);
template <typename A>
void token_logprobs_backward_cpu(const Tensor& dlogits, const Tensor& logits,
                                 const LogprobGradients& gradients, const Tensor& targets,
                                 const TokenCut* cuts, float inv_temperature);

}  // namespace grpo::ops
