// The entry points of every operator's CPU implementation. Contracts are in model/ops/<operator>.h,
// whose functions have checked the operands. A: dtype of activations and weights, W: of compute
// weights, G: of a product's gradient; each is float or Bfloat16.
#pragma once

#include <span>

#include "model/core/kv_view.h"
#include "model/core/tensor.h"
#include "model/ops/attention.h"
#include "model/ops/fixed_point_square.h"
#include "model/ops/log_softmax.h"
#include "model/ops/op_context.h"
#include "model/ops/optimizer_step.h"
#include "model/ops/page_copy.h"
#include "model/ops/region.h"
#include "model/ops/rms_norm.h"
#include "model/ops/sampler.h"

namespace grpo::ops::cpu {

// attention
template <typename A>
void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q, const KvView& kv,
                       float scale, OpContext& ctx);
template <typename A>
void attention_backward(const AttentionGradients& gradients, const Tensor& dout,
                        const AttentionSaved& saved, const KvView& kv, float scale, OpContext& ctx);

// embedding
template <typename A>
void embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& weight);
template <typename A>
void embedding_backward(const Tensor& dweight, const Tensor& dout, const Tensor& tokens,
                        bool accumulate, OpContext& ctx);

// linear
template <typename A, typename Out>
void linear_forward(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    OpContext& ctx);
template <typename A, typename G>
void linear_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& weight,
                           bool accumulate, OpContext& ctx);
template <typename A, typename G>
void linear_backward_weight(const Tensor& dweight, const Tensor& dout, const Tensor& x,
                            bool accumulate, OpContext& ctx);
template <typename G>
void linear_backward_bias(const Tensor& dbias, const Tensor& dout, bool accumulate);

// log_softmax
void filter_tokens(KeptTokens& kept, const Tensor& logits, const SamplingFilter& filter,
                   OpContext& ctx);
void token_logprobs(const TokenLogprobs& out, const Tensor& logits, const Tensor& targets,
                    const KeptTokensView& kept, float inv_temperature);
template <typename A>
void token_logprobs_backward(const Tensor& dlogits, const Tensor& logits,
                             const LogprobGradients& gradients, const Tensor& targets,
                             const KeptTokensView& kept, float inv_temperature);

// optimizer_step
template <typename W>
void adamw_step(const AdamWState& state, const Tensor& weight, const Tensor& gradient,
                const AdamWScalars& scalars);
template <typename W>
void sgd_step(const Tensor& master, const Tensor& weight, const Tensor& gradient,
              const SgdScalars& scalars);

// ordered_sum
void ordered_sum(const Tensor& out, std::span<const Tensor> rows);  // up to kMaxRowsAtOnce rows

// page_copy
void copy_pages(const Tensor& planes, std::span<const PageCopy> copies);

// reduce
float largest_magnitude(const Tensor& x);
FixedPoint square_sum(const Tensor& x, const SquareGrid& grid);
template <typename To, typename From>
void convert(const Tensor& destination, const Tensor& source);
void add_into(const Tensor& y, const Tensor& x);

// region
void copy_region(const MatrixRegion& destination, const MatrixRegion& source,
                 const Tensor& num_changed);
void add_fingerprint(const Tensor& sum, const MatrixRegion& region, const LogicalPlace& place,
                     DType dtype);

// residual
template <typename A>
void residual_add(const Tensor& out, const Tensor& a, const Tensor& b);

// rms_norm
template <typename A>
void rms_norm_forward(const Tensor& out, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                      float epsilon);
template <typename A>
void residual_rms_norm_forward(const NormedSum& out, const Tensor& x, const Tensor& addend,
                               const Tensor& weight, float epsilon);
template <typename A>
void rms_norm_backward(const RmsNormGradients& gradients, const Tensor& dout, const Tensor& x,
                       const Tensor& weight, const Tensor& rstd);

// rope
template <typename A>
void qkv_rope_forward(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                      const Tensor& positions, const Tensor& table);
template <typename A>
void qkv_rope_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dkeys,
                       const Tensor& dvalues, const Tensor& positions, const Tensor& table);

// rows
void gather_rows(const Tensor& out, const Tensor& x, const Tensor& indices);
void scatter_rows(const Tensor& out, const Tensor& x, const Tensor& indices);

// sampler
void sample_tokens(SampledToken* out, KeptTokens* kept, const Tensor& logits,
                   std::span<const TokenDraw> draws, const SamplingFilter& filter, OpContext& ctx);
void argmax_tokens(SampledToken* out, const Tensor& logits);

// swiglu
template <typename A>
void swiglu_forward(const Tensor& out, const Tensor& gate_up);
template <typename A>
void swiglu_backward(const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up);

}  // namespace grpo::ops::cpu
