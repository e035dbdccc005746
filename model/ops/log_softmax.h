// The one log-softmax of the program, used by the sampler and by training (numerics contract 4),
// with the sampling filters as stored cuts. T tokens, V vocabulary.
#pragma once

#include <cstdint>
#include <limits>

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// The kept set of a filtered distribution, on scaled logits z = logit * inv_temperature: token v is
// kept when z[v] > threshold, or z[v] == threshold and v <= last_tie. The default keeps everything.
struct TokenCut {
  float threshold = -std::numeric_limits<float>::infinity();
  int32_t last_tie = std::numeric_limits<int32_t>::max();

  bool keeps(float scaled_logit, int32_t token) const {
    return scaled_logit > threshold || (scaled_logit == threshold && token <= last_tie);
  }
  bool keeps_everything() const {
    return threshold == -std::numeric_limits<float>::infinity() &&
           last_tie == std::numeric_limits<int32_t>::max();
  }
  friend bool operator==(const TokenCut&, const TokenCut&) = default;
};

// temperature > 0; top_k 0 or top_p 1 switch a filter off.
struct SamplingFilter {
  float temperature = 1.0f;
  int32_t top_k = 0;
  double top_p = 1.0;  // double, so that 0.8 of ten equal tokens is eight

  float inv_temperature() const { return 1.0f / temperature; }
};

// The cut of each row: temperature, then top-k (ties with the k-th all kept), then top-p on what is
// left (by probability descending, id ascending, until the kept mass reaches p, the crossing token
// included). A row with NaN, +infinity or nothing finite is a NonFiniteError that names the row,
// here and below.
void compute_cuts(TokenCut* cuts,        // [T], host
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

// Log-probability of targets[t] under row t. Where the cut keeps everything both results are the
// same bits. A sampled token lies inside its own cut; when later weights move its logit below the
// stored threshold it still counts as kept, so that no update filters out a token of the rollout.
void token_logprobs(const TokenLogprobs& out,
                    const Tensor& logits,   // [T, V] float32
                    const Tensor& targets,  // [T] int32 in [0, V)
                    const TokenCut* cuts,   // [T], host; null keeps everything
                    float inv_temperature, OpContext& ctx);

// d loss / d logits from the gradients of the two log-probabilities:
// dlogits = inv_temperature * (dprocessed (onehot - p_kept) + dunfiltered (onehot - p_all)).
// in float32, rounded once to dlogits' dtype. Rows whose two gradients are 0 become exactly 0.
struct LogprobGradients {
  Tensor dprocessed;   // [T] float32
  Tensor dunfiltered;  // [T] float32, or absent
  Tensor sums = {};    // [T, kRowSumsBytes] uint8: what token_logprobs left of the same logits,
                       // targets, cuts and temperature, which are then not checked again; or absent
};

void token_logprobs_backward(const Tensor& dlogits,  // [T, V] float32 or bfloat16; may be logits
                             const Tensor& logits,   // [T, V] float32
                             const LogprobGradients& gradients,
                             const Tensor& targets,  // [T] int32
                             const TokenCut* cuts,   // [T], host; null keeps everything
                             float inv_temperature, OpContext& ctx);

}  // namespace grpo::ops
