// Stands in for the *_cuda.cu files in builds without CUDA.
#include "model/core/device_cuda.h"
#include "model/core/errors.h"
#include "model/ops/attention_cuda.h"
#include "model/ops/embedding_cuda.h"
#include "model/ops/linear_bias_cuda.h"
#include "model/ops/linear_cuda.h"
#include "model/ops/linear_exactness_cuda.h"
#include "model/ops/log_softmax_cuda.h"
#include "model/ops/matrix_library.h"
#include "model/ops/optimizer_step_cuda.h"
#include "model/ops/ordered_sum_cuda.h"
#include "model/ops/page_copy_cuda.h"
#include "model/ops/reduce_cuda.h"
#include "model/ops/region_cuda.h"
#include "model/ops/residual_cuda.h"
#include "model/ops/rms_norm_cuda.h"
#include "model/ops/rope_cuda.h"
#include "model/ops/rows_cuda.h"
#include "model/ops/sampler_cuda.h"
#include "model/ops/swiglu_cuda.h"

namespace grpo::ops {

namespace {

[[noreturn]] void throw_no_cuda(const char* op) {
  throw CudaError(fmt::format(
      "{}: this build has no CUDA operators; configure it with GRPO_CUDA=ON, or use cpu", op));
}

}  // namespace

void residual_add_cuda(const Tensor&, const Tensor&, const Tensor&, OpContext&) {
  throw_no_cuda("residual_add");
}

void swiglu_forward_cuda(const Tensor&, const Tensor&, OpContext&) {
  throw_no_cuda("swiglu_forward");
}

void swiglu_backward_cuda(const Tensor&, const Tensor&, const Tensor&, OpContext&) {
  throw_no_cuda("swiglu_backward");
}

void rms_norm_forward_cuda(const Tensor&, const Tensor&, const Tensor&, const Tensor&, float,
                           OpContext&) {
  throw_no_cuda("rms_norm_forward");
}

void residual_rms_norm_forward_cuda(const NormedSum&, const Tensor&, const Tensor&, const Tensor&,
                                    float, OpContext&) {
  throw_no_cuda("residual_rms_norm_forward");
}

void rms_norm_backward_cuda(const RmsNormGradients&, const Tensor&, const Tensor&, const Tensor&,
                            const Tensor&, OpContext&) {
  throw_no_cuda("rms_norm_backward");
}

void qkv_rope_forward_cuda(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                           const Tensor&, const Tensor&, OpContext&) {
  throw_no_cuda("qkv_rope_forward");
}

void qkv_rope_backward_cuda(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                            const Tensor&, const Tensor&, OpContext&) {
  throw_no_cuda("qkv_rope_backward");
}

void gather_rows_cuda(const Tensor&, const Tensor&, const Tensor&, OpContext&) {
  throw_no_cuda("gather_rows");
}

void scatter_rows_cuda(const Tensor&, const Tensor&, const Tensor&, OpContext&) {
  throw_no_cuda("scatter_rows");
}

void embedding_backward_cuda(const Tensor&, const Tensor&, const Tensor&, bool, OpContext&) {
  throw_no_cuda("embedding_backward");
}

void largest_magnitudes_cuda(std::span<float>, std::span<const Tensor>, OpContext&) {
  throw_no_cuda("largest_magnitudes");
}

FixedPoint square_sum_cuda(std::span<const Tensor>, const SquareGrid&, OpContext&) {
  throw_no_cuda("square_sum");
}

void convert_cuda(const Tensor&, const Tensor&, OpContext&) { throw_no_cuda("convert"); }

void ordered_sum_cuda(const Tensor&, std::span<const Tensor>, OpContext&) {
  throw_no_cuda("ordered_sum");
}

void add_into_cuda(const Tensor&, const Tensor&, OpContext&) { throw_no_cuda("add_into"); }

void copy_regions_cuda(std::span<const RegionCopy>, const Tensor&, OpContext&) {
  throw_no_cuda("copy_regions");
}

void add_fingerprints_cuda(const Tensor&, std::span<const PlacedRegion>, DType, OpContext&) {
  throw_no_cuda("add_fingerprints");
}

void copy_pages_cuda(const Tensor&, std::span<const PageCopy>, OpContext&) {
  throw_no_cuda("copy_pages");
}

void adamw_step_cuda(const AdamWState&, const Tensor&, const Tensor&, const AdamWScalars&,
                     OpContext&) {
  throw_no_cuda("adamw_step");
}

void sgd_step_cuda(const Tensor&, const Tensor&, const Tensor&, const SgdScalars&, OpContext&) {
  throw_no_cuda("sgd_step");
}

void linear_backward_bias_cuda(const Tensor&, const Tensor&, bool, OpContext&) {
  throw_no_cuda("linear_backward_bias");
}

void compute_cuts_cuda(TokenCut*, const Tensor&, const SamplingFilter&, OpContext&) {
  throw_no_cuda("compute_cuts");
}

void token_logprobs_cuda(const TokenLogprobs&, const Tensor&, const Tensor&, const TokenCut*, float,
                         OpContext&) {
  throw_no_cuda("token_logprobs");
}

void token_logprobs_backward_cuda(const Tensor&, const Tensor&, const LogprobGradients&,
                                  const Tensor&, const TokenCut*, float, OpContext&) {
  throw_no_cuda("token_logprobs_backward");
}

void sample_tokens_cuda(SampledToken*, const Tensor&, std::span<const TokenDraw>,
                        const SamplingFilter&, OpContext&) {
  throw_no_cuda("sample_tokens");
}

void argmax_tokens_cuda(SampledToken*, const Tensor&, OpContext&) {
  throw_no_cuda("argmax_tokens");
}

void attention_forward_cuda(const Tensor&, const Tensor&, const Tensor&, const KvView&, float,
                            OpContext&) {
  throw_no_cuda("attention_forward");
}

void attention_backward_cuda(const AttentionGradients&, const Tensor&, const AttentionSaved&,
                             const KvView&, float, OpContext&) {
  throw_no_cuda("attention_backward");
}

void linear_forward_cuda(const Tensor&, const Tensor&, const Tensor&, const Tensor&, OpContext&) {
  throw_no_cuda("linear_forward");
}

void linear_backward_input_cuda(const Tensor&, const Tensor&, const Tensor&, bool, OpContext&) {
  throw_no_cuda("linear_backward_input");
}

void linear_backward_weight_cuda(const Tensor&, const Tensor&, const Tensor&, bool, OpContext&) {
  throw_no_cuda("linear_backward_weight");
}

void check_linear_exactness_cuda(const LinearProbe&, const Tensor&, const Tensor&, OpContext&) {
  throw_no_cuda("check_linear_exactness");
}

}  // namespace grpo::ops

namespace grpo {

struct MatrixLibrary::State {};

MatrixLibrary::MatrixLibrary(Device device) {
  if (device.kind == DeviceKind::kCuda) check_cuda_device(device);
}

MatrixLibrary::~MatrixLibrary() = default;

void MatrixLibrary::set_candidate_rank(int) {}

std::string MatrixLibrary::describe_latest() const { return ""; }

}  // namespace grpo
