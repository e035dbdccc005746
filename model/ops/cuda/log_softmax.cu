// T tokens, V vocabulary.
#include <algorithm>

#include "model/core/device_cuda.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/cuda/kept_tokens.h"
#include "model/ops/cuda/softmax_row.cuh"
#include "model/ops/cuda/token_filter.h"
#include "model/ops/workspace_array.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// A thread a row.
__global__ void logprobs_kernel(float* processed, float* unfiltered, SoftmaxRows rows,
                                const RowSums* sums, const int32_t* targets) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= rows.num_rows) return;
  const int32_t target = targets[t];
  if (target < 0 || target >= rows.vocabulary) return;
  const float z = scaled(rows, t, target);
  processed[t] = softmax_logprob_cuda(z, sums[t].max, sums[t].kept);
  unfiltered[t] = softmax_logprob_cuda(z, sums[t].max, sums[t].all);
}

// What the gradients of a row are made of.
struct RowFactors {
  float max;
  float kept;    // times the weight of a kept token
  float all;     // times the weight of any token
  float target;  // added for the target
  bool is_zero;
};

__global__ void row_factors_kernel(RowFactors* out, const RowSums* sums, const float* dprocessed,
                                   const float* dunfiltered, int64_t num_rows,
                                   float inv_temperature) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= num_rows) return;
  const float processed = dprocessed[t];
  const float unfiltered = dunfiltered == nullptr ? 0.0f : dunfiltered[t];
  RowFactors factors{};
  factors.is_zero = processed == 0.0f && unfiltered == 0.0f;
  if (!factors.is_zero) {
    const auto factor = [&](float gradient, double sum) {
      const float product = __fmul_rn(-inv_temperature, gradient);
      return static_cast<float>(__ddiv_rn(static_cast<double>(product), sum));
    };
    factors.max = sums[t].max;
    factors.kept = factor(processed, sums[t].kept);
    factors.all = factor(unfiltered, sums[t].all);
    factors.target = __fmul_rn(inv_temperature, __fadd_rn(processed, unfiltered));
  }
  out[t] = factors;
}

// Where gradients of logits go, in the places of SoftmaxRows.
template <typename D>
struct GradientRows {
  D* data;       // [T, V]
  bool aligned;  // all rows, for packets of kLanesPerThread
};

// Puts values, rounded, where load_block takes them from.
template <typename D>
__device__ inline void store_block(const GradientRows<D>& to, const BlockValues& values,
                                   const SoftmaxRows& rows, int64_t t, int64_t begin) {
  D* data = to.data + t * rows.vocabulary + begin;
  const int64_t left = rows.vocabulary - begin;
#pragma unroll
  for (int group = 0; group < kBlockGroups; ++group) {
    const int token = block_token(group, 0);
    const int64_t count = left - token;
    store_group(data + token, values[group],
                count < 0 ? 0 : static_cast<int>(count < kLanesPerThread ? count : kLanesPerThread),
                to.aligned);
  }
}

// A warp a block of a row.
template <bool kHasKept, typename D>
__global__ void __launch_bounds__(kThreads)
    logprobs_backward_kernel(GradientRows<D> to, SoftmaxRows rows, const RowFactors* row_factors,
                             KeptRows kept, const int32_t* targets) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t t = at / rows.num_blocks;
  if (t >= rows.num_rows) return;
  const int64_t begin = at % rows.num_blocks * kSoftmaxBlock;
  const RowFactors factors = row_factors[t];
  BlockValues values;
  if (factors.is_zero) {
#pragma unroll
    for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
      for (int i = 0; i < kLanesPerThread; ++i) values[group][i] = 0.0f;
    }
    store_block(to, values, rows, t, begin);
    return;
  }
  load_block(values, rows, t, begin);
  scale_block(values, rows.inv_temperature);
  BlockKept tokens{};
  if (kHasKept) tokens = block_kept(kept, t, begin);
  const int64_t target = targets[t] - begin;
#pragma unroll
  for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kLanesPerThread; ++i) {
      float& value = values[group][i];
      const bool is_kept = !kHasKept || keeps(tokens, value, group, i);
      const float weight = exp_nonpositive_cuda(__fsub_rn(value, factors.max));
      value = __fmaf_rn(factors.kept, is_kept ? weight : 0.0f, __fmul_rn(factors.all, weight));
      if (block_token(group, i) == target) value = __fadd_rn(value, factors.target);
    }
  }
  store_block(to, values, rows, t, begin);
}

RowSums* stored_sums(const Tensor& sums) {
  return sums.is_absent() ? nullptr : static_cast<RowSums*>(sums.raw());
}

}  // namespace

void filter_tokens(KeptTokens& kept, const Tensor& logits, const SamplingFilter& filter,
                   OpContext& ctx) {
  const char* op = "filter_tokens";
  const SoftmaxRows rows = softmax_rows(logits, filter.inv_temperature());
  if (rows.num_rows == 0) return;
  const Workspace::Scope scope(ctx.workspace);
  const RowStatistics statistics = softmax_statistics(op, rows, {}, nullptr, ctx);
  const RowCut* cuts = row_cuts(op, rows, statistics, filter, ctx);
  check_rows(op, rows, statistics, nullptr, ctx);
  append_kept_rows(op, kept, rows, statistics, cuts, filter.max_kept_ids, ctx);
}

void token_logprobs(const TokenLogprobs& out, const Tensor& logits, const Tensor& targets,
                    const KeptTokensView& kept, float inv_temperature, OpContext& ctx) {
  const char* op = "token_logprobs";
  const SoftmaxRows rows = softmax_rows(logits, inv_temperature);
  if (rows.num_rows == 0) return;
  const Workspace::Scope scope(ctx.workspace);
  const auto* ids = targets.data<int32_t>();
  const RowSelection selection{ids};
  RowStatistics statistics = softmax_statistics(op, rows, selection, stored_sums(out.sums), ctx);
  add_kept_sums(op, statistics, rows, selection,
                kept_to_device(op, kept, statistics.rows, ids, ctx), ctx);
  launch(op, logprobs_kernel, ceil_div(rows.num_rows, kThreads), kThreads, ctx,
         out.processed.data<float>(), out.unfiltered.data<float>(), rows, statistics.rows, ids);
  check_rows(op, rows, statistics, ids, ctx);
}

void token_logprobs_backward(const Tensor& dlogits, const Tensor& logits,
                             const LogprobGradients& gradients, const Tensor& targets,
                             const KeptTokensView& kept, float inv_temperature, OpContext& ctx) {
  const char* op = "token_logprobs_backward";
  const SoftmaxRows rows = softmax_rows(logits, inv_temperature);
  if (rows.num_rows == 0) return;
  const Workspace::Scope scope(ctx.workspace);
  const RowSelection selection{
      targets.data<int32_t>(), gradients.dprocessed.data<float>(),
      gradients.dunfiltered.is_absent() ? nullptr : gradients.dunfiltered.data<float>()};
  const RowSums* sums = stored_sums(gradients.sums);
  RowStatistics statistics{};
  const bool has_sums = sums != nullptr;
  if (!has_sums) {
    statistics = softmax_statistics(op, rows, selection, nullptr, ctx);
    sums = statistics.rows;
  }
  const KeptRows kept_rows = kept_to_device(op, kept, sums, selection.targets, ctx);
  if (!has_sums) add_kept_sums(op, statistics, rows, selection, kept_rows, ctx);
  auto* factors = workspace_array<RowFactors>(ctx, rows.num_rows);
  launch(op, row_factors_kernel, ceil_div(rows.num_rows, kThreads), kThreads, ctx, factors, sums,
         selection.dprocessed, selection.dunfiltered, rows.num_rows, inv_temperature);
  dispatch_device_type(op, dlogits.dtype(), [&]<typename D>(D) {
    GradientRows<D> to{device_data<D>(dlogits), false};
    to.aligned = rows.vocabulary % kLanesPerThread == 0 && is_aligned<kLanesPerThread>(to.data);
    launch(
        op,
        kept.is_absent() ? logprobs_backward_kernel<false, D> : logprobs_backward_kernel<true, D>,
        ceil_div(rows.num_rows * rows.num_blocks, kWarps), kThreads, ctx, to, rows, factors,
        kept_rows, selection.targets);
  });
  if (!has_sums) check_rows(op, rows, statistics, selection.targets, ctx);
}

}  // namespace grpo::ops::cuda
