// T rows, V vocabulary, K most ids that a row stores.
#include "model/ops/cuda/kept_tokens.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "model/core/device_cuda.h"
#include "model/ops/cuda/softmax_row.cuh"
#include "model/ops/workspace_array.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kCollectThreads = 512;
constexpr int kCollectWarps = kCollectThreads / 32;
constexpr int kMaxListedIds = 4096;

__device__ inline unsigned ordered_bits(float value) {
  const unsigned bits = __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ inline float float_of(unsigned ordered) {
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

__device__ inline double log_sum_exp(const RowSums& sums) {
  return __dadd_rn(static_cast<double>(sums.max), log_cuda(sums.all));
}

__device__ inline double relative(float z, double lse) {
  return __dadd_rn(static_cast<double>(z), -lse);
}

// The smallest float whose relative logit is above `bound`, or at least it; infinity for none.
template <bool kIncluded>
__device__ inline float smallest_above(double bound, double lse) {
  unsigned first = ordered_bits(-infinity());
  unsigned last = ordered_bits(infinity());
  while (first < last) {
    const unsigned middle = first + (last - first) / 2;
    const double value = relative(float_of(middle), lse);
    if (kIncluded ? value >= bound : value > bound) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return float_of(first);
}

// row_cut_of on the device; a thread a row.
__global__ void row_cuts_of_kernel(RowCut* cuts, const KeptThreshold* thresholds,
                                   const RowSums* sums, int64_t num_rows) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= num_rows) return;
  const double lse = log_sum_exp(sums[t]);
  cuts[t].above = smallest_above<false>(thresholds[t].above, lse);
  cuts[t].tie = smallest_above<true>(thresholds[t].above, lse);
  cuts[t].last_tie = thresholds[t].last_tie;
}

// What a row's cut keeps.
struct KeptRow {
  double above;  // of the threshold
  int32_t last_tie;
  uint32_t num_kept;
  uint32_t is_separated;  // by the threshold, in float64
};

struct CollectScratch {
  unsigned num_kept;
  unsigned last_kept;      // ordered bits
  unsigned first_dropped;  // ordered bits
  uint32_t ids[kMaxListedIds];
};

// threshold_at and separates on the device.
__device__ inline KeptRow kept_row(const CollectScratch& scratch, const RowCut& cut,
                                   const RowSums& sums) {
  const float last_kept = float_of(scratch.last_kept);
  const float first_dropped = float_of(scratch.first_dropped);
  const double lse = log_sum_exp(sums);
  KeptRow row{0.0, -1, scratch.num_kept, 1};
  if (first_dropped == -infinity()) {
    row.above = -1.7976931348623157e308;
  } else if (first_dropped == last_kept) {
    row.above = relative(last_kept, lse);
    row.last_tie = cut.last_tie;
  } else {
    const double middle = __dmul_rn(
        __dadd_rn(static_cast<double>(last_kept), static_cast<double>(first_dropped)), 0.5);
    row.above = __dadd_rn(middle, -lse);
  }
  if (first_dropped != last_kept) {
    row.is_separated =
        relative(last_kept, lse) > row.above && relative(first_dropped, lse) < row.above ? 1 : 0;
  }
  return row;
}

// A block a row. slots [T, max_ids] receives the ids of rows that keep at most max_ids, ascending.
__global__ void __launch_bounds__(kCollectThreads)
    collect_kept_kernel(KeptRow* out, uint32_t* slots, SoftmaxRows rows, RowStatistics statistics,
                        const RowCut* cuts, unsigned max_ids) {
  __shared__ CollectScratch scratch;
  const int64_t t = blockIdx.x;
  const RowCut cut = cuts[t];
  if (threadIdx.x == 0) {
    scratch.num_kept = 0;
    scratch.last_kept = ordered_bits(infinity());
    scratch.first_dropped = ordered_bits(-infinity());
  }
  __syncthreads();
  float last_kept = infinity();
  float first_dropped = -infinity();
  for (int64_t block = threadIdx.x / 32; block < rows.num_blocks; block += kCollectWarps) {
    const float max = statistics.blocks.max[t * rows.num_blocks + block];
    if (max < cut.tie) {
      first_dropped = fmaxf(first_dropped, max);
      continue;
    }
    const int64_t begin = block * kSoftmaxBlock;
    BlockValues z;
    load_block(z, rows, t, begin);
    scale_block(z, rows.inv_temperature);
#pragma unroll
    for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
      for (int i = 0; i < kLanesPerThread; ++i) {
        const int64_t token = begin + block_token(group, i);
        if (token >= rows.vocabulary) continue;
        const float value = __fadd_rn(z[group][i], 0.0f);  // -0 and 0 tie
        if (value >= (token <= cut.last_tie ? cut.tie : cut.above)) {
          last_kept = fminf(last_kept, value);
          const unsigned place = atomicAdd(&scratch.num_kept, 1u);
          if (place < max_ids) scratch.ids[place] = static_cast<uint32_t>(token);
        } else {
          first_dropped = fmaxf(first_dropped, value);
        }
      }
    }
  }
  atomicMin(&scratch.last_kept, ordered_bits(last_kept));
  atomicMax(&scratch.first_dropped, ordered_bits(first_dropped));
  __syncthreads();
  if (threadIdx.x == 0) out[t] = kept_row(scratch, cut, statistics.rows[t]);
  const unsigned count = scratch.num_kept;
  if (count > max_ids) return;
  for (unsigned i = threadIdx.x; i < count; i += kCollectThreads) {
    unsigned place = 0;
    for (unsigned j = 0; j < count; ++j) place += scratch.ids[j] < scratch.ids[i] ? 1 : 0;
    slots[t * max_ids + place] = scratch.ids[i];
  }
}

// A block a row: its ids from its slots to where they stand among all.
__global__ void pack_ids_kernel(uint32_t* ids, const uint32_t* slots, const uint32_t* offsets,
                                unsigned max_ids) {
  const int64_t t = blockIdx.x;
  const uint32_t first = offsets[t];
  for (uint32_t i = first + threadIdx.x; i < offsets[t + 1]; i += kThreads) {
    ids[i] = slots[t * max_ids + (i - first)];
  }
}

template <typename T>
T* to_device(const T* host, int64_t count, OpContext& ctx) {
  T* copy = workspace_array<T>(ctx, count);
  if (count == 0) return copy;
  cuda_copy_bytes(copy, ctx.device, host, Device::cpu(), static_cast<size_t>(count) * sizeof(T),
                  ctx.stream);
  return copy;
}

template <typename T>
std::vector<T> to_host(const T* device, int64_t count, OpContext& ctx) {
  std::vector<T> host(static_cast<size_t>(count));
  if (count == 0) return host;
  cuda_copy_bytes(host.data(), Device::cpu(), device, ctx.device,
                  static_cast<size_t>(count) * sizeof(T), ctx.stream);
  return host;
}

// All ids of a row, for sets that no threshold describes.
std::vector<uint32_t> all_ids(const SoftmaxRows& rows, int64_t t, const RowCut* cuts,
                              OpContext& ctx) {
  const RowCut cut = to_host(cuts + t, 1, ctx).front();
  const std::vector<float> logits =
      to_host(rows.logits + t * rows.vocabulary, rows.vocabulary, ctx);
  std::vector<uint32_t> ids;
  for (int64_t v = 0; v < rows.vocabulary; ++v) {
    const float z = logits[static_cast<size_t>(v)] * rows.inv_temperature + 0.0f;
    if (cut.keeps(z, static_cast<int32_t>(v))) ids.push_back(static_cast<uint32_t>(v));
  }
  return ids;
}

}  // namespace

KeptRows kept_to_device(const char* op, const KeptTokensView& kept, const RowSums* sums,
                        const int32_t* targets, OpContext& ctx) {
  KeptRows rows{};
  rows.targets = targets;
  if (kept.is_absent()) return rows;
  const uint32_t first = kept.offsets[0];
  const uint32_t last = kept.offsets[kept.num_rows];
  if (last > first) {
    std::vector<uint32_t> offsets(kept.offsets, kept.offsets + kept.num_rows + 1);
    for (uint32_t& offset : offsets) offset -= first;
    rows.offsets = to_device(offsets.data(), kept.num_rows + 1, ctx);
    rows.ids = to_device(kept.ids + first, last - first, ctx);
  }
  if (kept.thresholds != nullptr) {
    auto* cuts = workspace_array<RowCut>(ctx, kept.num_rows);
    const KeptThreshold* thresholds = to_device(kept.thresholds, kept.num_rows, ctx);
    launch(op, row_cuts_of_kernel, ceil_div(kept.num_rows, kThreads), kThreads, ctx, cuts,
           thresholds, sums, kept.num_rows);
    rows.cuts = cuts;
  }
  return rows;
}

void append_kept_rows(const char* op, KeptTokens& kept, const SoftmaxRows& rows,
                      const RowStatistics& statistics, const RowCut* cuts, int32_t max_kept_ids,
                      OpContext& ctx) {
  if (cuts == nullptr) return kept.append_everything(rows.num_rows);
  CHECK(max_kept_ids >= 0 && max_kept_ids <= kMaxListedIds, "{}: {} ids a row", op, max_kept_ids);
  const Workspace::Scope scope(ctx.workspace);
  const auto max_ids = static_cast<unsigned>(max_kept_ids);
  auto* device_kept = workspace_array<KeptRow>(ctx, rows.num_rows);
  auto* slots = workspace_array<uint32_t>(ctx, rows.num_rows * max_kept_ids);
  launch(op, collect_kept_kernel, rows.num_rows, kCollectThreads, ctx, device_kept, slots, rows,
         statistics, cuts, max_ids);
  const std::vector<KeptRow> found = to_host(device_kept, rows.num_rows, ctx);
  std::vector<uint32_t> offsets{0};
  for (const KeptRow& row : found) {
    const bool is_listed = row.num_kept <= max_ids && row.num_kept < rows.vocabulary;
    offsets.push_back(offsets.back() + (is_listed ? row.num_kept : 0));
  }
  std::vector<uint32_t> ids;
  if (offsets.back() > 0) {
    auto* packed = workspace_array<uint32_t>(ctx, offsets.back());
    launch(op, pack_ids_kernel, rows.num_rows, kThreads, ctx, packed, slots,
           to_device(offsets.data(), rows.num_rows + 1, ctx), max_ids);
    ids = to_host(packed, offsets.back(), ctx);
  }
  for (int64_t t = 0; t < rows.num_rows; ++t) {
    const KeptRow& row = found[static_cast<size_t>(t)];
    const uint32_t first = offsets[static_cast<size_t>(t)];
    const uint32_t last = offsets[static_cast<size_t>(t) + 1];
    if (row.num_kept == rows.vocabulary) {
      kept.append_threshold({});
    } else if (last > first) {
      kept.append_ids(std::span(ids).subspan(first, last - first));
    } else if (row.is_separated != 0) {
      kept.append_threshold({row.above, row.last_tie});
    } else {
      kept.append_ids(all_ids(rows, t, cuts, ctx));
    }
  }
}

}  // namespace grpo::ops::cuda
