// CUDA implementations behind log_softmax.h; operands are checked.
#pragma once

#include "model/ops/log_softmax.h"

namespace grpo::ops {

void compute_cuts_cuda(TokenCut* cuts, const Tensor& logits, const SamplingFilter& filter,
                       OpContext& ctx);
void token_logprobs_cuda(const TokenLogprobs& out, const Tensor& logits, const Tensor& targets,
                         const TokenCut* cuts, float inv_temperature, OpContext& ctx);
void token_logprobs_backward_cuda(const Tensor& dlogits, const Tensor& logits,
                                  const LogprobGradients& gradients, const Tensor& targets,
                                  const TokenCut* cuts, float inv_temperature, OpContext& ctx);

}  // namespace grpo::ops
