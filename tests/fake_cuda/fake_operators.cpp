// Implements the model/ops/*_cuda.h headers of the fake device: the CPU reference on the host's
// mapping.
#include <cstring>
#include <span>
#include <vector>

#include "model/ops/attention_cuda.h"
#include "model/ops/embedding_cuda.h"
#include "model/ops/linear_bias_cuda.h"
#include "model/ops/linear_cuda.h"
#include "model/ops/linear_exactness_cuda.h"
#include "model/ops/log_softmax_cuda.h"
#include "model/ops/matrix_library.h"
#include "model/ops/optimizer_step_cuda.h"
#include "model/ops/ordered_sum.h"
#include "model/ops/ordered_sum_cuda.h"
#include "model/ops/page_copy_cuda.h"
#include "model/ops/reduce_cpu.h"
#include "model/ops/reduce_cuda.h"
#include "model/ops/region_cuda.h"
#include "model/ops/residual_cuda.h"
#include "model/ops/rms_norm_cuda.h"
#include "model/ops/rope_cuda.h"
#include "model/ops/rows_cuda.h"
#include "model/ops/sampler_cuda.h"
#include "model/ops/swiglu_cuda.h"
#include "tests/fake_cuda/fake_memory.h"
#include "tests/fake_cuda/fake_streams.h"

namespace grpo::ops {

namespace {

using testing::on_host;

NormedSum on_host(const NormedSum& n) {
  return {.sum = on_host(n.sum), .normed = on_host(n.normed), .rstd = on_host(n.rstd)};
}

RmsNormGradients on_host(const RmsNormGradients& g) {
  return {.dx = on_host(g.dx),
          .accumulate_dx = g.accumulate_dx,
          .dweight = on_host(g.dweight),
          .accumulate_dweight = g.accumulate_dweight};
}

AdamWState on_host(const AdamWState& s) {
  return {.master = on_host(s.master), .m = on_host(s.m), .v = on_host(s.v)};
}

TokenLogprobs on_host(const TokenLogprobs& l) {
  return {.processed = on_host(l.processed),
          .unfiltered = on_host(l.unfiltered),
          .sums = on_host(l.sums)};
}

Region on_host(const Region& r) {
  return {.matrix = on_host(r.matrix),
          .row = r.row,
          .col = r.col,
          .num_rows = r.num_rows,
          .num_cols = r.num_cols};
}

LogprobGradients on_host(const LogprobGradients& g) {
  return {.dprocessed = on_host(g.dprocessed),
          .dunfiltered = on_host(g.dunfiltered),
          .sums = on_host(g.sums)};
}

KvView on_host(const KvView& kv) {
  KvView host = kv;
  for (Tensor* tensor : {&host.keys, &host.values, &host.query_offsets, &host.context_lengths,
                         &host.page_first_slot}) {
    *tensor = on_host(*tensor);
  }
  return host;
}

AttentionGradients on_host(const AttentionGradients& g) {
  return {.dq = on_host(g.dq), .dkeys = on_host(g.dkeys), .dvalues = on_host(g.dvalues)};
}

AttentionSaved on_host(const AttentionSaved& s) {
  return {.q = on_host(s.q), .out = on_host(s.out), .lse = on_host(s.lse)};
}

// Scalars, and arrays that are the host's by contract.
template <typename T>
const T& on_host(const T& value) {
  return value;
}

// The operator itself, on the CPU.
template <typename Op, typename... Arguments>
auto run_on_host(Op* op, const Arguments&... arguments) {
  return op(on_host(arguments)..., testing::host_context());
}

// The same for operators that a context's numerics change.
template <typename Op, typename... Arguments>
auto run_on_host_as(const OpContext& ctx, Op* op, const Arguments&... arguments) {
  OpContext host = testing::host_context();
  host.numerics = ctx.numerics;
  return op(on_host(arguments)..., host);
}

}  // namespace

void embedding_backward_cuda(const Tensor& dweight, const Tensor& dout, const Tensor& tokens,
                             bool accumulate, OpContext&) {
  run_on_host(embedding_backward, dweight, dout, tokens, accumulate);
}

void linear_backward_bias_cuda(const Tensor& dbias, const Tensor& dout, bool accumulate,
                               OpContext&) {
  run_on_host(linear_backward_bias, dbias, dout, accumulate);
}

void compute_cuts_cuda(TokenCut* cuts, const Tensor& logits, const SamplingFilter& filter,
                       OpContext&) {
  run_on_host(compute_cuts, cuts, logits, filter);
}

void token_logprobs_cuda(const TokenLogprobs& out, const Tensor& logits, const Tensor& targets,
                         const TokenCut* cuts, float inv_temperature, OpContext&) {
  run_on_host(token_logprobs, out, logits, targets, cuts, inv_temperature);
}

void token_logprobs_backward_cuda(const Tensor& dlogits, const Tensor& logits,
                                  const LogprobGradients& gradients, const Tensor& targets,
                                  const TokenCut* cuts, float inv_temperature, OpContext&) {
  run_on_host(token_logprobs_backward, dlogits, logits, gradients, targets, cuts, inv_temperature);
}

void sample_tokens_cuda(SampledToken* out, const Tensor& logits, std::span<const TokenDraw> draws,
                        const SamplingFilter& filter, OpContext&) {
  run_on_host(sample_tokens, out, logits, draws, filter);
}

void argmax_tokens_cuda(SampledToken* out, const Tensor& logits, OpContext&) {
  run_on_host(argmax_tokens, out, logits);
}

void copy_pages_cuda(const Tensor& planes, std::span<const PageCopy> copies, OpContext&) {
  run_on_host(copy_pages, planes, copies);
}

void adamw_step_cuda(const AdamWState& state, const Tensor& weight, const Tensor& gradient,
                     const AdamWScalars& scalars, OpContext&) {
  run_on_host(adamw_step, state, weight, gradient, scalars);
}

void sgd_step_cuda(const Tensor& master, const Tensor& weight, const Tensor& gradient,
                   const SgdScalars& scalars, OpContext&) {
  run_on_host(sgd_step, master, weight, gradient, scalars);
}

void largest_magnitudes_cuda(std::span<float> largest, std::span<const Tensor> xs, OpContext&) {
  std::vector<Tensor> host;
  for (const Tensor& x : xs) host.push_back(on_host(x));
  largest_magnitudes(largest, host, testing::host_context());
}

FixedPoint square_sum_cuda(std::span<const Tensor> xs, const SquareGrid& grid, OpContext&) {
  FixedPoint units = 0;
  for (const Tensor& x : xs) units += square_sum_cpu(on_host(x), grid);
  return units;
}

void convert_cuda(const Tensor& destination, const Tensor& source, OpContext&) {
  run_on_host(convert, destination, source);
}

void ordered_sum_cuda(const Tensor& out, std::span<const Tensor> rows, OpContext& ctx) {
  std::vector<Tensor> on_this_side;
  for (const Tensor& row : rows) on_this_side.push_back(on_host(row));
  testing::run_on_stream(ctx.stream, [out, on_this_side] {
    ordered_sum(on_host(out), on_this_side, testing::host_context());
  });
}

void add_into_cuda(const Tensor& y, const Tensor& x, OpContext& ctx) {
  testing::run_on_stream(ctx.stream, [y, x] { run_on_host(add_into, y, x); });
}

void copy_regions_cuda(std::span<const RegionCopy> copies, const Tensor& num_changed, OpContext&) {
  std::vector<RegionCopy> moved;
  for (const auto& [destination, source] : copies) {
    moved.push_back({on_host(destination), on_host(source)});
  }
  copy_regions(moved, on_host(num_changed), testing::host_context());
}

void add_fingerprints_cuda(const Tensor& sum, std::span<const PlacedRegion> regions, DType dtype,
                           OpContext&) {
  std::vector<PlacedRegion> moved;
  for (const auto& [region, place] : regions) moved.push_back({on_host(region), place});
  add_fingerprints(on_host(sum), moved, dtype, testing::host_context());
}

void residual_add_cuda(const Tensor& out, const Tensor& a, const Tensor& b, OpContext&) {
  run_on_host(residual_add, out, a, b);
}

void rms_norm_forward_cuda(const Tensor& out, const Tensor& rstd, const Tensor& x,
                           const Tensor& weight, float epsilon, OpContext&) {
  run_on_host(rms_norm_forward, out, rstd, x, weight, epsilon);
}

void residual_rms_norm_forward_cuda(const NormedSum& out, const Tensor& x, const Tensor& addend,
                                    const Tensor& weight, float epsilon, OpContext&) {
  run_on_host(residual_rms_norm_forward, out, x, addend, weight, epsilon);
}

void rms_norm_backward_cuda(const RmsNormGradients& gradients, const Tensor& dout, const Tensor& x,
                            const Tensor& weight, const Tensor& rstd, OpContext&) {
  run_on_host(rms_norm_backward, gradients, dout, x, weight, rstd);
}

void qkv_rope_forward_cuda(const Tensor& q, const Tensor& keys, const Tensor& values,
                           const Tensor& qkv, const Tensor& positions, const Tensor& table,
                           OpContext&) {
  run_on_host(qkv_rope_forward, q, keys, values, qkv, positions, table);
}

void qkv_rope_backward_cuda(const Tensor& dqkv, const Tensor& dq, const Tensor& dkeys,
                            const Tensor& dvalues, const Tensor& positions, const Tensor& table,
                            OpContext&) {
  run_on_host(qkv_rope_backward, dqkv, dq, dkeys, dvalues, positions, table);
}

void gather_rows_cuda(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext&) {
  run_on_host(gather_rows, out, x, indices);
}

void scatter_rows_cuda(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext&) {
  run_on_host(scatter_rows, out, x, indices);
}

void swiglu_forward_cuda(const Tensor& out, const Tensor& gate_up, OpContext&) {
  run_on_host(swiglu_forward, out, gate_up);
}

void swiglu_backward_cuda(const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up,
                          OpContext&) {
  run_on_host(swiglu_backward, dgate_up, dout, gate_up);
}

void attention_forward_cuda(const Tensor& out, const Tensor& lse, const Tensor& q, const KvView& kv,
                            float scale, OpContext& ctx) {
  run_on_host_as(ctx, attention_forward, out, lse, q, kv, scale);
}

void attention_backward_cuda(const AttentionGradients& gradients, const Tensor& dout,
                             const AttentionSaved& saved, const KvView& kv, float scale,
                             OpContext&) {
  run_on_host(attention_backward, gradients, dout, saved, kv, scale);
}

void linear_forward_cuda(const Tensor& out, const Tensor& x, const Tensor& weight,
                         const Tensor& bias, OpContext& ctx) {
  run_on_host_as(ctx, linear_forward, out, x, weight, bias);
}

void linear_backward_input_cuda(const Tensor& dx, const Tensor& dout, const Tensor& weight,
                                bool accumulate, OpContext&) {
  run_on_host(linear_backward_input, dx, dout, weight, accumulate);
}

void linear_backward_weight_cuda(const Tensor& dweight, const Tensor& dout, const Tensor& x,
                                 bool accumulate, OpContext&) {
  run_on_host(linear_backward_weight, dweight, dout, x, accumulate);
}

// One row in all places.
void check_linear_exactness_cuda(const LinearProbe& probe, const Tensor& weight, const Tensor& bias,
                                 OpContext& ctx) {
  const Tensor x = on_host(probe.x);
  const int64_t most = x.size(0);
  const int64_t size = x.size(1);
  for (int64_t i = 0; i < most * size; ++i) {
    const float value = 1.0f / static_cast<float>(1 + i % size);
    if (x.dtype() == DType::kFloat32) {
      x.data<float>()[i] = value;
    } else {
      x.data<Bfloat16>()[i] = Bfloat16(value);
    }
  }
  linear_forward(probe.wanted.rows(0, 1), probe.x.rows(0, 1), weight, bias, ctx);
  linear_forward(probe.out, probe.x, weight, bias, ctx);
  const Tensor wanted = on_host(probe.wanted.rows(0, 1));
  for (int64_t row = 0; row < most; ++row) {
    if (std::memcmp(on_host(probe.out.rows(row, 1)).raw(), wanted.raw(), wanted.size_bytes()) != 0)
      throw CudaError(fmt::format("row {} of {} of weight {} has other bits", row, most,
                                  weight.shape().to_string()));
  }
}

}  // namespace grpo::ops

namespace grpo {

struct MatrixLibrary::State {};

MatrixLibrary::MatrixLibrary(Device) {}

MatrixLibrary::~MatrixLibrary() = default;

void MatrixLibrary::set_candidate_rank(int) {}

std::string MatrixLibrary::describe_latest() const { return ""; }

}  // namespace grpo
