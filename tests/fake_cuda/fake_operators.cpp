// The CUDA entry points of the fake device: the CPU reference on the host's mapping.
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/matrix_library.h"
#include "model/ops/ordered_sum.h"
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

MatrixRegion on_host(const MatrixRegion& r) {
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

void cuda::embedding_backward(const Tensor& dweight, const Tensor& dout, const Tensor& tokens,
                              bool accumulate, OpContext&) {
  run_on_host(ops::embedding_backward, dweight, dout, tokens, accumulate);
}

void cuda::linear_backward_bias(const Tensor& dbias, const Tensor& dout, bool accumulate,
                                OpContext&) {
  run_on_host(ops::linear_backward_bias, dbias, dout, accumulate);
}

void cuda::filter_tokens(KeptTokens& kept, const Tensor& logits, const SamplingFilter& filter,
                         OpContext&) {
  run_on_host(ops::filter_tokens, std::ref(kept), logits, filter);
}

void cuda::token_logprobs(const TokenLogprobs& out, const Tensor& logits, const Tensor& targets,
                          const KeptTokensView& kept, float inv_temperature, OpContext&) {
  run_on_host(ops::token_logprobs, out, logits, targets, kept, inv_temperature);
}

void cuda::token_logprobs_backward(const Tensor& dlogits, const Tensor& logits,
                                   const LogprobGradients& gradients, const Tensor& targets,
                                   const KeptTokensView& kept, float inv_temperature, OpContext&) {
  run_on_host(ops::token_logprobs_backward, dlogits, logits, gradients, targets, kept,
              inv_temperature);
}

void cuda::sample_tokens(SampledToken* out, KeptTokens* kept, const Tensor& logits,
                         std::span<const TokenDraw> draws, const SamplingFilter& filter,
                         OpContext&) {
  run_on_host(ops::sample_tokens, out, kept, logits, draws, filter);
}

void cuda::argmax_tokens(SampledToken* out, const Tensor& logits, OpContext&) {
  run_on_host(ops::argmax_tokens, out, logits);
}

void cuda::copy_pages(const Tensor& planes, std::span<const PageCopy> copies, OpContext&) {
  run_on_host(ops::copy_pages, planes, copies);
}

void cuda::adamw_step(const AdamWState& state, const Tensor& weight, const Tensor& gradient,
                      const AdamWScalars& scalars, OpContext&) {
  run_on_host(ops::adamw_step, state, weight, gradient, scalars);
}

void cuda::sgd_step(const Tensor& master, const Tensor& weight, const Tensor& gradient,
                    const SgdScalars& scalars, OpContext&) {
  run_on_host(ops::sgd_step, master, weight, gradient, scalars);
}

void cuda::largest_magnitudes(std::span<float> largest, std::span<const Tensor> xs, OpContext&) {
  std::vector<Tensor> host;
  for (const Tensor& x : xs) host.push_back(on_host(x));
  ops::largest_magnitudes(largest, host, testing::host_context());
}

FixedPoint cuda::square_sum(std::span<const Tensor> xs, const SquareGrid& grid, OpContext&) {
  FixedPoint units = 0;
  for (const Tensor& x : xs) units += cpu::square_sum(on_host(x), grid);
  return units;
}

void cuda::convert(const Tensor& destination, const Tensor& source, OpContext&) {
  run_on_host(ops::convert, destination, source);
}

void cuda::ordered_sum(const Tensor& out, std::span<const Tensor> rows, OpContext& ctx) {
  std::vector<Tensor> on_this_side;
  for (const Tensor& row : rows) on_this_side.push_back(on_host(row));
  testing::run_on_stream(ctx.stream, [out, on_this_side] {
    ops::ordered_sum(on_host(out), on_this_side, testing::host_context());
  });
}

void cuda::add_into(const Tensor& y, const Tensor& x, OpContext& ctx) {
  testing::run_on_stream(ctx.stream, [y, x] { run_on_host(ops::add_into, y, x); });
}

void cuda::copy_regions(std::span<const RegionCopy> copies, const Tensor& num_changed, OpContext&) {
  std::vector<RegionCopy> moved;
  for (const auto& [destination, source] : copies) {
    moved.push_back({on_host(destination), on_host(source)});
  }
  ops::copy_regions(moved, on_host(num_changed), testing::host_context());
}

void cuda::add_fingerprints(const Tensor& sum, std::span<const PlacedRegion> regions, DType dtype,
                            OpContext&) {
  std::vector<PlacedRegion> moved;
  for (const auto& [region, place] : regions) moved.push_back({on_host(region), place});
  ops::add_fingerprints(on_host(sum), moved, dtype, testing::host_context());
}

void cuda::residual_add(const Tensor& out, const Tensor& a, const Tensor& b, OpContext&) {
  run_on_host(ops::residual_add, out, a, b);
}

void cuda::rms_norm_forward(const Tensor& out, const Tensor& rstd, const Tensor& x,
                            const Tensor& weight, float epsilon, OpContext&) {
  run_on_host(ops::rms_norm_forward, out, rstd, x, weight, epsilon);
}

void cuda::residual_rms_norm_forward(const NormedSum& out, const Tensor& x, const Tensor& addend,
                                     const Tensor& weight, float epsilon, OpContext&) {
  run_on_host(ops::residual_rms_norm_forward, out, x, addend, weight, epsilon);
}

void cuda::rms_norm_backward(const RmsNormGradients& gradients, const Tensor& dout, const Tensor& x,
                             const Tensor& weight, const Tensor& rstd, OpContext&) {
  run_on_host(ops::rms_norm_backward, gradients, dout, x, weight, rstd);
}

void cuda::qkv_rope_forward(const Tensor& q, const Tensor& keys, const Tensor& values,
                            const Tensor& qkv, const Tensor& positions, const Tensor& table,
                            OpContext&) {
  run_on_host(ops::qkv_rope_forward, q, keys, values, qkv, positions, table);
}

void cuda::qkv_rope_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dkeys,
                             const Tensor& dvalues, const Tensor& positions, const Tensor& table,
                             OpContext&) {
  run_on_host(ops::qkv_rope_backward, dqkv, dq, dkeys, dvalues, positions, table);
}

void cuda::gather_rows(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext&) {
  run_on_host(ops::gather_rows, out, x, indices);
}

void cuda::scatter_rows(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext&) {
  run_on_host(ops::scatter_rows, out, x, indices);
}

void cuda::swiglu_forward(const Tensor& out, const Tensor& gate_up, OpContext&) {
  run_on_host(ops::swiglu_forward, out, gate_up);
}

void cuda::swiglu_backward(const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up,
                           OpContext&) {
  run_on_host(ops::swiglu_backward, dgate_up, dout, gate_up);
}

void cuda::attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q,
                             const KvView& kv, float scale, OpContext& ctx) {
  run_on_host_as(ctx, ops::attention_forward, out, lse, q, kv, scale);
}

void cuda::attention_backward(const AttentionGradients& gradients, const Tensor& dout,
                              const AttentionSaved& saved, const KvView& kv, float scale,
                              OpContext&) {
  run_on_host(ops::attention_backward, gradients, dout, saved, kv, scale);
}

void cuda::linear_forward(const Tensor& out, const Tensor& x, const Tensor& weight,
                          const Tensor& bias, OpContext& ctx) {
  run_on_host_as(ctx, ops::linear_forward, out, x, weight, bias);
}

void cuda::linear_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& weight,
                                 bool accumulate, OpContext&) {
  run_on_host(ops::linear_backward_input, dx, dout, weight, accumulate);
}

void cuda::linear_backward_weight(const Tensor& dweight, const Tensor& dout, const Tensor& x,
                                  bool accumulate, OpContext&) {
  run_on_host(ops::linear_backward_weight, dweight, dout, x, accumulate);
}

// One row in all places.
void cuda::check_linear_exactness(const LinearProbe& probe, const Tensor& weight,
                                  const Tensor& bias, OpContext& ctx) {
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
  ops::linear_forward(probe.wanted.rows(0, 1), probe.x.rows(0, 1), weight, bias, ctx);
  ops::linear_forward(probe.out, probe.x, weight, bias, ctx);
  const Tensor wanted = on_host(probe.wanted.rows(0, 1));
  for (int64_t row = 0; row < most; ++row) {
    if (std::memcmp(on_host(probe.out.rows(row, 1)).raw(), wanted.raw(), wanted.size_bytes()) != 0)
      throw CudaError(fmt::format("row {} of {} of weight {} has other bits", row, most,
                                  weight.shape().to_string()));
  }
}

}  // namespace grpo::ops

namespace grpo {

namespace {

std::string matrix_library_problem;

}  // namespace

namespace testing {

void set_fake_matrix_library_problem(const std::string& problem) {
  matrix_library_problem = problem;
}

}  // namespace testing

struct MatrixLibrary::State {};

std::string why_no_matrix_library() { return matrix_library_problem; }

MatrixLibrary::MatrixLibrary(Device) {}

MatrixLibrary::~MatrixLibrary() = default;

void MatrixLibrary::set_candidate_rank(int) {}

std::string MatrixLibrary::describe_latest() const { return ""; }

}  // namespace grpo
