// The one log-softmax of the program, used by the sampler and by training (numerics contract 4),
// over the tokens that the sampling filters kept. T tokens, V vocabulary.
#pragma once

#include <cstdint>

#include "model/core/tensor.h"
#include "model/ops/kept_tokens.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// temperature > 0; top_k 0 or top_p 1 switch a filter off.
struct SamplingFilter {
  float temperature = 1.0f;
  int32_t top_k = 0;
  double top_p = 1.0;          // double, so that 0.8 of ten equal tokens is eight
  int32_t max_kept_ids = 256;  // larger sets are stored by a threshold

  bool is_on() const { return top_k > 0 || top_p < 1.0; }
  float inv_temperature() const { return 1.0f / temperature; }
};

// Appends the set that the filter keeps of each row: temperature, then the top_k most probable
// tokens, then top-p on what is left (until the kept mass reaches p, the crossing token included);
// of equal logits the lower id comes first. A row with NaN, +infinity or nothing finite is a
// NonFiniteError that names the row, here and below.
void filter_tokens(KeptTokens& kept,      // gains T rows; host
                   const Tensor& logits,  // [T, V] float32
                   const SamplingFilter& filter, OpContext& ctx);

// What the softmax of a row came to: its largest scaled logit z, and the sums of exp(z - max) over
// all tokens and over the kept ones.
struct RowSums {
  float max;
  double all;
  double kept;
};
constexpr int64_t kRowSumsBytes = sizeof(RowSums);

struct TokenLogprobs {
  Tensor processed;   // [T] float32: over the kept set, to which the target always belongs
  Tensor unfiltered;  // [T] float32: over the whole vocabulary, same temperature
  Tensor sums = {};   // [T, kRowSumsBytes] uint8: RowSums, for the backward; or absent
};

// Log-probability of targets[t] under row t. Where everything is kept both results are the same
// bits. A target always counts as kept, also where later weights move its logit below a stored
// threshold, so that no update filters out a token of the rollout.
void token_logprobs(const TokenLogprobs& out,
                    const Tensor& logits,        // [T, V] float32
                    const Tensor& targets,       // [T] int32 in [0, V)
                    const KeptTokensView& kept,  // [T], host
                    float inv_temperature, OpContext& ctx);

// d loss / d logits from the gradients of the two log-probabilities:
// dlogits = inv_temperature * (dprocessed (onehot - p_kept) + dunfiltered (onehot - p_all)).
// in float32, rounded once to dlogits' dtype. Rows whose two gradients are 0 become exactly 0.
struct LogprobGradients {
  Tensor dprocessed;   // [T] float32
  Tensor dunfiltered;  // [T] float32, or absent
  Tensor sums = {};    // [T, kRowSumsBytes] uint8: what token_logprobs left of the same logits,
                       // targets, sets and temperature, which are then not checked again; or absent
};

void token_logprobs_backward(const Tensor& dlogits,  // [T, V] float32 or bfloat16; may be logits
                             const Tensor& logits,   // [T, V] float32
                             const LogprobGradients& gradients,
                             const Tensor& targets,       // [T] int32
                             const KeptTokensView& kept,  // [T], host
                             float inv_temperature, OpContext& ctx);

}  // namespace grpo::ops
