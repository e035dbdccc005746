// CPU implementations behind sampler.h; operands are checked.
#pragma once

#include "model/ops/sampler.h"

namespace grpo::ops {

void sample_tokens_cpu(SampledToken* out, const Tensor& logits, std::span<const TokenDraw> draws,
                       const SamplingFilter& filter, OpContext& ctx);
void argmax_tokens_cpu(SampledToken* out, const Tensor& logits);

}  // namespace grpo::ops
