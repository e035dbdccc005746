// T rows, V vocabulary, B blocks a row, N draws.
#include <limits>

#include "model/core/device_cuda.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/cuda/kept_tokens.h"
#include "model/ops/cuda/softmax_row.cuh"
#include "model/ops/cuda/token_filter.h"
#include "model/ops/non_finite_row.h"
#include "model/ops/workspace_array.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kNumRuns = static_cast<int>(kSoftmaxBlock / kDrawRun);
static_assert(kNumRuns == 32 && kDrawRun == 32, "a thread a run, a thread a token of a run");

// The weights of a warp's block; a word between runs spreads them over the banks.
struct WeightRuns {
  float weights[kNumRuns][kDrawRun + 1];

  __device__ float& at(int token) { return weights[token / kDrawRun][token % kDrawRun]; }
};

// The first of up to 32 masses, one a thread, at which `before` plus their cumulative sum exceeds
// `wanted`; -1 if none does. `before` grows by those in front of it.
__device__ inline int find_mass(double& before, double mass, double wanted) {
#pragma unroll 4
  for (int i = 0; i < 32; ++i) {
    const double sum = __dadd_rn(before, __shfl_sync(kFullWarp, mass, i));
    if (sum > wanted) return i;
    before = sum;
  }
  return -1;
}

// The block of a row into which `wanted` falls.
__device__ inline int64_t find_block(double& before, const BlockSums& blocks, int64_t first,
                                     int64_t num_blocks, float max, double wanted) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t begin = 0; begin < num_blocks; begin += 32) {
    const int64_t at = first + begin + lane;
    const double mass =
        begin + lane < num_blocks ? block_mass(blocks.kept[at], blocks.max[at], max) : 0.0;
    const int found = find_mass(before, mass, wanted);
    if (found >= 0) return begin + found;
  }
  return 0;  // only in rows that are not finite
}

__device__ inline void load_weights(WeightRuns& runs, const SoftmaxRows& rows, const RowCut* cuts,
                                    int64_t t, int64_t begin, float block_max) {
  BlockValues z;
  load_block(z, rows, t, begin);
  scale_block(z, rows.inv_temperature);
  const float reference = block_reference(block_max);
  KeptRows kept{};
  kept.cuts = cuts;
  const BlockKept tokens = block_kept(kept, t, begin);
#pragma unroll
  for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kLanesPerThread; ++i) {
      const int token = block_token(group, i);
      const bool is_kept = keeps(tokens, z[group][i], group, i);
      runs.at(token) = is_kept ? exp_nonpositive_cuda(__fsub_rn(z[group][i], reference)) : 0.0f;
    }
  }
  __syncwarp();
}

// Token of the block at which `before` plus the cumulative mass exceeds `wanted`; rounding may
// leave the tokens just short of the block's mass, and then it is the last possible one.
__device__ inline int draw_in_block(WeightRuns& runs, double scale, double before, double wanted) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  double sum = 0.0;
  int last_possible = 0;
  for (int i = 0; i < kDrawRun; ++i) {
    const float weight = runs.weights[lane][i];
    if (weight > 0.0f) last_possible = lane * static_cast<int>(kDrawRun) + i;
    sum = __dadd_rn(sum, static_cast<double>(weight));
  }
  const int run = find_mass(before, __dmul_rn(sum, scale), wanted);
  if (run >= 0) {
    const double weight = runs.weights[run][lane];
    const int token = find_mass(before, __dmul_rn(weight, scale), wanted);
    if (token >= 0) return run * static_cast<int>(kDrawRun) + token;
    return __shfl_sync(kFullWarp, last_possible, run);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    last_possible = max(last_possible, __shfl_xor_sync(kFullWarp, last_possible, distance));
  }
  return last_possible;
}

// Takes the token's place where a row is not sound; the host raises the error.
constexpr int32_t kNoToken = -1;

__device__ inline void store_sample(SampledToken& out, const SoftmaxRows& rows, int64_t t,
                                    int64_t token, const RowSums& sums) {
  out.token = is_sound(sums) ? static_cast<int32_t>(token) : kNoToken;
  out.logprob = softmax_logprob_cuda(scaled(rows, t, token), sums.max, sums.kept);
}

// A warp a draw.
__global__ void __launch_bounds__(kThreads)
    draw_kernel(SampledToken* out, SoftmaxRows rows, RowStatistics statistics, const RowCut* cuts,
                const TokenDraw* draws, int64_t num_draws) {
  __shared__ WeightRuns scratch[kWarps];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (at >= num_draws) return;
  const int64_t t = draws[at].row;
  const RowSums sums = statistics.rows[t];
  const int64_t first = t * rows.num_blocks;
  const double wanted = __dmul_rn(draws[at].uniform, sums.kept);
  double before = 0.0;
  const int64_t block =
      find_block(before, statistics.blocks, first, rows.num_blocks, sums.max, wanted);
  const float largest = statistics.blocks.max[first + block];
  const int64_t begin = block * kSoftmaxBlock;
  load_weights(scratch[warp], rows, cuts, t, begin, largest);
  const auto scale = static_cast<double>(exp_nonpositive_cuda(__fsub_rn(largest, sums.max)));
  const int64_t token = begin + draw_in_block(scratch[warp], scale, before, wanted);
  if (threadIdx.x % 32 == 0) store_sample(out[at], rows, t, token, sums);
}

// A warp a row: the first block that has the row's maximum, then its first token that is it.
__global__ void __launch_bounds__(kThreads)
    argmax_kernel(SampledToken* out, SoftmaxRows rows, RowStatistics statistics) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= rows.num_rows) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const RowSums sums = statistics.rows[t];
  const auto first_in_warp = [](int64_t found) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const int64_t other = __shfl_xor_sync(kFullWarp, found, distance);
      found = other < found ? other : found;
    }
    return found;
  };
  int64_t block = rows.num_blocks - 1;  // stays in rows that are not finite
  for (int64_t b = lane; b < rows.num_blocks; b += 32) {
    if (b < block && statistics.blocks.max[t * rows.num_blocks + b] == sums.max) block = b;
  }
  block = first_in_warp(block);
  BlockValues z;
  load_block(z, rows, t, block * kSoftmaxBlock);
  scale_block(z, rows.inv_temperature);
  int64_t token = kSoftmaxBlock;
#pragma unroll
  for (int group = kBlockGroups - 1; group >= 0; --group) {
#pragma unroll
    for (int i = kLanesPerThread - 1; i >= 0; --i) {
      if (z[group][i] == sums.max) token = block_token(group, i);
    }
  }
  token = first_in_warp(token);
  if (token == kSoftmaxBlock) token = 0;
  if (lane == 0) store_sample(out[t], rows, t, block * kSoftmaxBlock + token, sums);
}

// The one wait of a call. Throws for the first row that is not sound, as the CPU does; draw i is of
// row row_of(i).
template <typename RowOf>
void to_host(const char* op, SampledToken* out, const SampledToken* device_out, int64_t count,
             const RowStatistics& statistics, const RowOf& row_of, OpContext& ctx) {
  const auto copy = [&](auto* host, const auto* device, int64_t num) {
    cuda_copy_bytes(host, Device::cpu(), device, ctx.device,
                    static_cast<size_t>(num) * sizeof(*host), ctx.stream);
  };
  copy(out, device_out, count);
  for (int64_t i = 0; i < count; ++i) {
    if (out[i].token != kNoToken) continue;
    const int64_t row = row_of(i);
    RowSums sums{};
    copy(&sums, statistics.rows + row, 1);
    throw_non_finite_row(op, row, sums.max, sums.all);
  }
}

}  // namespace

void sample_tokens(SampledToken* out, KeptTokens* kept, const Tensor& logits,
                   std::span<const TokenDraw> draws, const SamplingFilter& filter, OpContext& ctx) {
  const char* op = "sample_tokens";
  const SoftmaxRows rows = softmax_rows(logits, filter.inv_temperature());
  if (rows.num_rows == 0) return;
  const Workspace::Scope scope(ctx.workspace);
  const auto num_draws = static_cast<int64_t>(draws.size());
  auto* device_draws = workspace_array<TokenDraw>(ctx, num_draws);
  cuda_copy_bytes(device_draws, ctx.device, draws.data(), Device::cpu(), draws.size_bytes(),
                  ctx.stream);
  RowStatistics statistics = softmax_statistics(op, rows, {}, nullptr, ctx);
  const RowCut* cuts = row_cuts(op, rows, statistics, filter, ctx);
  KeptRows kept_rows{};
  kept_rows.cuts = cuts;
  add_kept_sums(op, statistics, rows, {}, kept_rows, ctx);
  auto* device_out = workspace_array<SampledToken>(ctx, num_draws);
  launch(op, draw_kernel, ceil_div(num_draws, kWarps), kThreads, ctx, device_out, rows, statistics,
         cuts, device_draws, num_draws);
  to_host(
      op, out, device_out, num_draws, statistics,
      [&](int64_t i) { return draws[static_cast<size_t>(i)].row; }, ctx);
  if (kept != nullptr) {
    append_kept_rows(op, *kept, rows, statistics, cuts, filter.max_kept_ids, ctx);
  }
}

void argmax_tokens(SampledToken* out, const Tensor& logits, OpContext& ctx) {
  const char* op = "argmax_tokens";
  const SoftmaxRows rows = softmax_rows(logits, 1.0f);
  if (rows.num_rows == 0) return;
  const Workspace::Scope scope(ctx.workspace);
  const RowStatistics statistics = softmax_statistics(op, rows, {}, nullptr, ctx);
  auto* device_out = workspace_array<SampledToken>(ctx, rows.num_rows);
  launch(op, argmax_kernel, ceil_div(rows.num_rows, kWarps), kThreads, ctx, device_out, rows,
         statistics);
  to_host(
      op, out, device_out, rows.num_rows, statistics, [](int64_t i) { return i; }, ctx);
}

}  // namespace grpo::ops::cuda
