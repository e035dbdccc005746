// The entry points of every operator's CUDA implementation. Contracts are in
// model/ops/<operator>.h, whose functions have checked the operands, but not token ids and indices
// in device memory. In a build without CUDA the declarations are weak and nothing defines them:
// dispatch.h refuses the device before it calls one.
#pragma once

#include <span>
#include <string>

#include "model/core/tensor.h"
#include "model/ops/attention.h"
#include "model/ops/cuda/linear_probe.h"
#include "model/ops/embedding.h"
#include "model/ops/linear.h"
#include "model/ops/log_softmax.h"
#include "model/ops/op_context.h"
#include "model/ops/optimizer_step.h"
#include "model/ops/page_copy.h"
#include "model/ops/reduce.h"
#include "model/ops/region.h"
#include "model/ops/residual.h"
#include "model/ops/rms_norm.h"
#include "model/ops/rope.h"
#include "model/ops/rows.h"
#include "model/ops/sampler.h"
#include "model/ops/swiglu.h"

#ifdef GRPO_HAS_CUDA
#define GRPO_CUDA_ENTRY
#else
#define GRPO_CUDA_ENTRY [[gnu::weak]]
#endif

namespace grpo::ops::cuda {

// attention
GRPO_CUDA_ENTRY void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q,
                                       const KvView& kv, float scale, OpContext& ctx);
GRPO_CUDA_ENTRY void attention_backward(const AttentionGradients& gradients, const Tensor& dout,
                                        const AttentionSaved& saved, const KvView& kv, float scale,
                                        OpContext& ctx);

// embedding
GRPO_CUDA_ENTRY void embedding_backward(const Tensor& dweight, const Tensor& dout,
                                        const Tensor& tokens, bool accumulate, OpContext& ctx);

// linear
GRPO_CUDA_ENTRY void linear_forward(const Tensor& out, const Tensor& x, const Tensor& weight,
                                    const Tensor& bias, OpContext& ctx);
GRPO_CUDA_ENTRY void linear_backward_input(const Tensor& dx, const Tensor& dout,
                                           const Tensor& weight, bool accumulate, OpContext& ctx);
GRPO_CUDA_ENTRY void linear_backward_weight(const Tensor& dweight, const Tensor& dout,
                                            const Tensor& x, bool accumulate, OpContext& ctx);
// What linear_forward would run, for messages.
GRPO_CUDA_ENTRY std::string linear_algorithm(const Tensor& out, const Tensor& x,
                                             const Tensor& weight, const Tensor& bias,
                                             OpContext& ctx);

GRPO_CUDA_ENTRY void linear_backward_bias(const Tensor& dbias, const Tensor& dout, bool accumulate,
                                          OpContext& ctx);

GRPO_CUDA_ENTRY void check_linear_exactness(const LinearProbe& probe, const Tensor& weight,
                                            const Tensor& bias, OpContext& ctx);

// log_softmax
GRPO_CUDA_ENTRY void filter_tokens(KeptTokens& kept, const Tensor& logits,
                                   const SamplingFilter& filter, OpContext& ctx);
GRPO_CUDA_ENTRY void token_logprobs(const TokenLogprobs& out, const Tensor& logits,
                                    const Tensor& targets, const KeptTokensView& kept,
                                    float inv_temperature, OpContext& ctx);
GRPO_CUDA_ENTRY void token_logprobs_backward(const Tensor& dlogits, const Tensor& logits,
                                             const LogprobGradients& gradients,
                                             const Tensor& targets, const KeptTokensView& kept,
                                             float inv_temperature, OpContext& ctx);

// optimizer_step
GRPO_CUDA_ENTRY void adamw_step(const AdamWState& state, const Tensor& weight,
                                const Tensor& gradient, const AdamWScalars& scalars,
                                OpContext& ctx);
GRPO_CUDA_ENTRY void sgd_step(const Tensor& master, const Tensor& weight, const Tensor& gradient,
                              const SgdScalars& scalars, OpContext& ctx);

// ordered_sum
// Up to kMaxRowsAtOnce rows.
GRPO_CUDA_ENTRY void ordered_sum(const Tensor& out, std::span<const Tensor> rows, OpContext& ctx);

// page_copy
GRPO_CUDA_ENTRY void copy_pages(const Tensor& planes, std::span<const PageCopy> copies,
                                OpContext& ctx);

// reduce
GRPO_CUDA_ENTRY void largest_magnitudes(std::span<float> largest, std::span<const Tensor> xs,
                                        OpContext& ctx);
GRPO_CUDA_ENTRY FixedPoint square_sum(std::span<const Tensor> xs, const SquareGrid& grid,
                                      OpContext& ctx);
GRPO_CUDA_ENTRY void convert(const Tensor& destination, const Tensor& source, OpContext& ctx);
GRPO_CUDA_ENTRY void add_into(const Tensor& y, const Tensor& x, OpContext& ctx);

// region
GRPO_CUDA_ENTRY void copy_regions(std::span<const RegionCopy> copies, const Tensor& num_changed,
                                  OpContext& ctx);
GRPO_CUDA_ENTRY void add_fingerprints(const Tensor& sum, std::span<const PlacedRegion> regions,
                                      DType dtype, OpContext& ctx);

// residual
GRPO_CUDA_ENTRY void residual_add(const Tensor& out, const Tensor& a, const Tensor& b,
                                  OpContext& ctx);

// rms_norm
GRPO_CUDA_ENTRY void rms_norm_forward(const Tensor& out, const Tensor& rstd, const Tensor& x,
                                      const Tensor& weight, float epsilon, OpContext& ctx);
GRPO_CUDA_ENTRY void residual_rms_norm_forward(const NormedSum& out, const Tensor& x,
                                               const Tensor& addend, const Tensor& weight,
                                               float epsilon, OpContext& ctx);
GRPO_CUDA_ENTRY void rms_norm_backward(const RmsNormGradients& gradients, const Tensor& dout,
                                       const Tensor& x, const Tensor& weight, const Tensor& rstd,
                                       OpContext& ctx);

// rope
GRPO_CUDA_ENTRY void qkv_rope_forward(const Tensor& q, const Tensor& keys, const Tensor& values,
                                      const Tensor& qkv, const Tensor& positions,
                                      const Tensor& table, OpContext& ctx);
GRPO_CUDA_ENTRY void qkv_rope_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dkeys,
                                       const Tensor& dvalues, const Tensor& positions,
                                       const Tensor& table, OpContext& ctx);

// rows
GRPO_CUDA_ENTRY void gather_rows(const Tensor& out, const Tensor& x, const Tensor& indices,
                                 OpContext& ctx);
GRPO_CUDA_ENTRY void scatter_rows(const Tensor& out, const Tensor& x, const Tensor& indices,
                                  OpContext& ctx);

// sampler
GRPO_CUDA_ENTRY void sample_tokens(SampledToken* out, KeptTokens* kept, const Tensor& logits,
                                   std::span<const TokenDraw> draws, const SamplingFilter& filter,
                                   OpContext& ctx);
GRPO_CUDA_ENTRY void argmax_tokens(SampledToken* out, const Tensor& logits, OpContext& ctx);

// swiglu
GRPO_CUDA_ENTRY void swiglu_forward(const Tensor& out, const Tensor& gate_up, OpContext& ctx);
GRPO_CUDA_ENTRY void swiglu_backward(const Tensor& dgate_up, const Tensor& dout,
                                     const Tensor& gate_up, OpContext& ctx);

}  // namespace grpo::ops::cuda

#undef GRPO_CUDA_ENTRY
