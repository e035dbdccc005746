// T rows, V vocabulary, B blocks a row.
#include "model/ops/cuda/softmax_rows.h"

#include <limits>

#include "model/core/device_cuda.h"
#include "model/ops/cuda/softmax_row.cuh"
#include "model/ops/non_finite_row.h"
#include "model/ops/workspace_array.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kNoRowByte = 0x7f;  // bytes of a row number that no row has

__device__ inline bool takes_part(const RowSelection& selection, int64_t t) {
  if (selection.dprocessed == nullptr || selection.dprocessed[t] != 0.0f) return true;
  return selection.dunfiltered != nullptr && selection.dunfiltered[t] != 0.0f;
}

// Adds up to 32 masses, one a thread, in ascending order; the same sum in every thread.
__device__ inline double add_masses(double sum, double mass) {
#pragma unroll
  for (int i = 0; i < 32; ++i) sum = __dadd_rn(sum, __shfl_sync(kFullWarp, mass, i));
  return sum;
}

// A warp a block of a row.
__global__ void __launch_bounds__(kThreads)
    block_sums_kernel(BlockSums out, SoftmaxRows rows, RowSelection selection) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t t = at / rows.num_blocks;
  if (t >= rows.num_rows || !takes_part(selection, t)) return;
  const int64_t begin = at % rows.num_blocks * kSoftmaxBlock;
  BlockValues z;
  load_block(z, rows, t, begin);
  scale_block(z, rows.inv_temperature);
  const float max = block_max(z);
  const float reference = block_reference(max);
  float all[kLanesPerThread] = {};
#pragma unroll
  for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kLanesPerThread; ++i) {
      all[i] = __fadd_rn(all[i], exp_nonpositive_cuda(__fsub_rn(z[group][i], reference)));
    }
  }
  const float sum = sum_lanes(all);
  if (threadIdx.x % 32 == 0) {
    out.max[at] = max;
    out.all[at] = sum;
  }
}

// A warp a block of a row, whose sums over all tokens are there.
__global__ void __launch_bounds__(kThreads)
    kept_block_sums_kernel(BlockSums sums, SoftmaxRows rows, RowSelection selection,
                           KeptRows kept_rows) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t t = at / rows.num_blocks;
  if (t >= rows.num_rows || !takes_part(selection, t)) return;
  const int64_t begin = at % rows.num_blocks * kSoftmaxBlock;
  const BlockKept tokens = block_kept(kept_rows, t, begin);
  const float max = sums.max[at];
  float kept[kLanesPerThread] = {};
  if (keeps_any(tokens, max)) {
    BlockValues z;
    load_block(z, rows, t, begin);
    scale_block(z, rows.inv_temperature);
    const float reference = block_reference(max);
#pragma unroll
    for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
      for (int i = 0; i < kLanesPerThread; ++i) {
        const bool is_kept = keeps(tokens, z[group][i], group, i);
        const float weight = exp_nonpositive_cuda(__fsub_rn(z[group][i], reference));
        kept[i] = __fadd_rn(kept[i], is_kept ? weight : 0.0f);
      }
    }
  }
  const float sum = sum_lanes(kept);
  if (threadIdx.x % 32 == 0) sums.kept[at] = sum;
}

// A warp a row.
__global__ void __launch_bounds__(kThreads)
    kept_row_sums_kernel(RowStatistics out, SoftmaxRows rows, RowSelection selection) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= rows.num_rows || !takes_part(selection, t)) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float max = out.rows[t].max;
  double kept = 0.0;
  for (int64_t begin = 0; begin < rows.num_blocks; begin += 32) {
    const int64_t at = t * rows.num_blocks + begin + lane;
    kept = add_masses(kept, begin + lane < rows.num_blocks
                                ? block_mass(out.blocks.kept[at], out.blocks.max[at], max)
                                : 0.0);
  }
  if (lane == 0) out.rows[t].kept = kept;
}

// A warp a row.
__global__ void __launch_bounds__(kThreads)
    row_sums_kernel(RowStatistics out, SoftmaxRows rows, RowSelection selection) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= rows.num_rows) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (selection.targets != nullptr && lane == 0) {
    const int32_t target = selection.targets[t];
    if (target < 0 || target >= rows.vocabulary) {
      atomicMin(&out.defects->target, static_cast<int32_t>(t));
    }
  }
  if (!takes_part(selection, t)) return;
  const int64_t first = t * rows.num_blocks;
  float max = -infinity();
  for (int64_t block = lane; block < rows.num_blocks; block += 32) {
    max = fmaxf(max, out.blocks.max[first + block]);
  }
  max = warp_max(max);
  double all = 0.0;
  for (int64_t begin = 0; begin < rows.num_blocks; begin += 32) {
    const int64_t block = begin + lane;
    const int64_t at = first + block;
    const bool is_block = block < rows.num_blocks;
    all = add_masses(all, is_block ? block_mass(out.blocks.all[at], out.blocks.max[at], max) : 0.0);
  }
  if (lane != 0) return;
  if (!is_finite(max)) all = max;
  const RowSums sums{max, all, all};
  if (!is_sound(sums)) atomicMin(&out.defects->non_finite, static_cast<int32_t>(t));
  out.rows[t] = sums;
}

}  // namespace

SoftmaxRows softmax_rows(const Tensor& logits, float inv_temperature) {
  SoftmaxRows rows{logits.data<float>(), logits.size(0),
                   logits.size(1),       ceil_div(logits.size(1), kSoftmaxBlock),
                   inv_temperature,      false};
  rows.aligned = rows.vocabulary % kLanesPerThread == 0 && is_aligned<kLanesPerThread>(rows.logits);
  return rows;
}

RowStatistics softmax_statistics(const char* op, const SoftmaxRows& rows,
                                 const RowSelection& selection, RowSums* sums, OpContext& ctx) {
  CHECK(rows.num_rows < std::numeric_limits<int32_t>::max() / 2, "{}: {} rows", op, rows.num_rows);
  const int64_t num_sums = rows.num_rows * rows.num_blocks;
  RowStatistics out{};
  out.blocks.max = workspace_array<float>(ctx, num_sums);
  out.blocks.all = workspace_array<float>(ctx, num_sums);
  out.blocks.kept = out.blocks.all;
  out.rows = sums == nullptr ? workspace_array<RowSums>(ctx, rows.num_rows) : sums;
  out.defects = workspace_array<RowDefects>(ctx, 1);
  cuda_fill_bytes(ctx.device, out.defects, kNoRowByte, sizeof(RowDefects), ctx.stream);
  launch(op, block_sums_kernel, ceil_div(num_sums, kWarps), kThreads, ctx, out.blocks, rows,
         selection);
  launch(op, row_sums_kernel, ceil_div(rows.num_rows, kWarps), kThreads, ctx, out, rows, selection);
  return out;
}

void add_kept_sums(const char* op, RowStatistics& statistics, const SoftmaxRows& rows,
                   const RowSelection& selection, const KeptRows& kept, OpContext& ctx) {
  if (kept.keeps_everything()) return;
  const int64_t num_sums = rows.num_rows * rows.num_blocks;
  statistics.blocks.kept = workspace_array<float>(ctx, num_sums);
  launch(op, kept_block_sums_kernel, ceil_div(num_sums, kWarps), kThreads, ctx, statistics.blocks,
         rows, selection, kept);
  launch(op, kept_row_sums_kernel, ceil_div(rows.num_rows, kWarps), kThreads, ctx, statistics, rows,
         selection);
}

void check_rows(const char* op, const SoftmaxRows& rows, const RowStatistics& statistics,
                const int32_t* targets, OpContext& ctx) {
  const auto to_host = [&](auto& host, const auto* device) {
    cuda_copy_bytes(&host, Device::cpu(), device, ctx.device, sizeof(host), ctx.stream);
  };
  RowDefects defects{};
  to_host(defects, statistics.defects);
  if (defects.target < rows.num_rows) {
    int32_t target = 0;
    to_host(target, targets + defects.target);
    throw InternalError(fmt::format("{}: target {} of row {} is outside [0, {})", op, target,
                                    defects.target, rows.vocabulary));
  }
  if (defects.non_finite < rows.num_rows) {
    RowSums sums{};
    to_host(sums, statistics.rows + defects.non_finite);
    throw_non_finite_row(op, defects.non_finite, sums.max, sums.all);
  }
}

}  // namespace grpo::ops::cuda
