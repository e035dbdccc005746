// Draws tokens from the filtered distributions of rows, replayably. T rows, V vocabulary, N draws.
#pragma once

#include <cstdint>
#include <span>

#include "model/core/tensor.h"
#include "model/ops/log_softmax.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

struct SampledToken {
  int32_t token;
  float logprob;  // processed log-probability, by token_logprobs' arithmetic
};

// The token: the first kept id of the row, ascending, at which the cumulative probability exceeds
// the uniform.
struct TokenDraw {
  double uniform;  // in [0, 1)
  int32_t row;
};

// Draws stand in ascending order of their rows, and every row has at least one.
void sample_tokens(SampledToken* out,                 // [N], host
                   KeptTokens* kept,                  // gains T rows, host; null: not wanted
                   const Tensor& logits,              // [T, V] float32
                   std::span<const TokenDraw> draws,  // [N], host
                   const SamplingFilter& filter, OpContext& ctx);

// Greedy: the largest logit, lowest id on ties; its log-probability is at temperature 1,
// unfiltered.
void argmax_tokens(SampledToken* out,     // [T], host
                   const Tensor& logits,  // [T, V] float32
                   OpContext& ctx);

}  // namespace grpo::ops
