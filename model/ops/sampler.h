// Draws one token a row from the filtered distribution, replayably. T rows, V vocabulary.
#pragma once

#include <cstdint>

#include "model/core/tensor.h"
#include "model/ops/log_softmax.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

struct SampledToken {
  int32_t token;
  float logprob;  // processed log-probability, by token_logprobs' arithmetic
  TokenCut cut;   // what training applies again
};

// Token of row t: the first kept id, ascending, at which the cumulative probability exceeds
// uniforms[t].
void sample_tokens(SampledToken* out,       // [T], host
                   const Tensor& logits,    // [T, V] float32
                   const double* uniforms,  // [T] in [0, 1), host
                   const SamplingFilter& filter, OpContext& ctx);

// Greedy: the largest logit, lowest id on ties; its log-probability is at temperature 1,
// unfiltered.
void argmax_tokens(SampledToken* out,     // [T], host
                   const Tensor& logits,  // [T, V] float32
                   OpContext& ctx);

}  // namespace grpo::ops
