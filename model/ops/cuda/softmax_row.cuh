// The softmax of one row of logits on the device, in the order of softmax_order.h. A warp takes one
// block of kSoftmaxBlock tokens into its registers: of each kSoftmaxLanes tokens, thread i holds
// four neighbours, lanes 4 i to 4 i + 3.
#pragma once

#include <cstdint>

#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/float_math.cuh"
#include "model/ops/cuda/softmax_rows.h"
#include "model/ops/softmax_order.h"

namespace grpo::ops::cuda {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kLanesPerThread = kSoftmaxLanes / 32;
constexpr int kBlockGroups = static_cast<int>(kSoftmaxBlock) / kSoftmaxLanes;

using BlockValues = float[kBlockGroups][kLanesPerThread];

__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }
__device__ inline bool is_finite(float x) { return fabsf(x) < infinity(); }

// A row that has a distribution: a NaN does not show in the maximum, but makes the sum NaN.
__device__ inline bool is_sound(const RowSums& sums) {
  return is_finite(sums.max) && sums.all < static_cast<double>(infinity());
}

__device__ inline float scaled(const SoftmaxRows& rows, int64_t t, int64_t token) {
  return __fmul_rn(rows.logits[t * rows.vocabulary + token], rows.inv_temperature);
}

// Token of a thread's element within its block.
__device__ inline int block_token(int group, int element) {
  return group * kSoftmaxLanes + static_cast<int>(threadIdx.x % 32) * kLanesPerThread + element;
}

// Logits of a block that starts at token `begin`; -infinity behind the row's end.
__device__ inline void load_block(BlockValues& values, const SoftmaxRows& rows, int64_t t,
                                  int64_t begin) {
  const float* data = rows.logits + t * rows.vocabulary + begin;
  if (rows.aligned && begin + kSoftmaxBlock <= rows.vocabulary) {
    Packet<float, kLanesPerThread> packets[kBlockGroups];
#pragma unroll
    for (int group = 0; group < kBlockGroups; ++group) {
      packets[group] =
          load_packet<kLanesPerThread>(data + block_token(group, 0), kLanesPerThread, true);
    }
#pragma unroll
    for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
      for (int i = 0; i < kLanesPerThread; ++i) values[group][i] = packets[group].elements[i];
    }
    return;
  }
  const int64_t left = rows.vocabulary - begin;
#pragma unroll
  for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kLanesPerThread; ++i) {
      const int token = block_token(group, i);
      values[group][i] = token < left ? data[token] : -infinity();
    }
  }
}

__device__ inline void scale_block(BlockValues& values, float inv_temperature) {
#pragma unroll
  for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kLanesPerThread; ++i) {
      values[group][i] = __fmul_rn(values[group][i], inv_temperature);
    }
  }
}

// Whatever NaN are among them.
__device__ inline float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

// Largest of a block; +0 rather than -0.
__device__ inline float block_max(const BlockValues& z) {
  float max = -infinity();
#pragma unroll
  for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kLanesPerThread; ++i) max = fmaxf(max, z[group][i]);
  }
  return __fadd_rn(warp_max(max), 0.0f);
}

// What a block's weights are relative to: its largest z, if it has a finite one.
__device__ inline float block_reference(float max) { return max == -infinity() ? 0.0f : max; }

// The sum over all lanes by halves, in every thread: halves that lie in other threads first.
__device__ inline float sum_lanes(float (&lanes)[kLanesPerThread]) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < kLanesPerThread; ++i) {
      lanes[i] = __fadd_rn(lanes[i], __shfl_xor_sync(kFullWarp, lanes[i], distance));
    }
  }
#pragma unroll
  for (int half = kLanesPerThread / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) lanes[i] = __fadd_rn(lanes[i], lanes[i + half]);
  }
  return lanes[0];
}

// The kept tokens of one block, as a thread of its warp sees them: tokens counted from the block's
// first. Bit group * kLanesPerThread + i of `listed` is the thread's element i of a group.
struct BlockKept {
  float above;
  float tie;
  int last_tie;
  int always_kept;
  bool has_list;
  unsigned listed;
};
static_assert(kBlockGroups * kLanesPerThread == 32, "an element a bit");

// Sets the thread's bits of the row's ids [first, last) that lie in the block at token `begin`.
__device__ inline unsigned listed_in_block(const uint32_t* ids, uint32_t first, uint32_t last,
                                           int64_t begin) {
  const auto block_first = static_cast<uint32_t>(begin);
  const uint32_t end = last;
  while (first < last) {
    const uint32_t middle = first + (last - first) / 2;
    if (ids[middle] < block_first) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  unsigned listed = 0;
  const unsigned lane = threadIdx.x % 32;
  for (; first < end; ++first) {
    const uint32_t token = ids[first] - block_first;
    if (token >= kSoftmaxBlock) break;
    const uint32_t place = token % kSoftmaxLanes;
    if (place / kLanesPerThread == lane) {
      listed |= 1u << (token / kSoftmaxLanes * kLanesPerThread + place % kLanesPerThread);
    }
  }
  return listed;
}

__device__ inline BlockKept block_kept(const KeptRows& kept, int64_t t, int64_t begin) {
  const int first = static_cast<int>(begin);
  BlockKept block{-infinity(), -infinity(),
                  0x7fffffff,  kept.targets == nullptr ? -1 : kept.targets[t] - first,
                  false,       0};
  if (kept.offsets != nullptr && kept.offsets[t] < kept.offsets[t + 1]) {
    block.has_list = true;
    block.listed = listed_in_block(kept.ids, kept.offsets[t], kept.offsets[t + 1], begin);
  } else if (kept.cuts != nullptr) {
    block.above = kept.cuts[t].above;
    block.tie = kept.cuts[t].tie;
    block.last_tie = kept.cuts[t].last_tie - first;
  }
  return block;
}

// Element (group, element) of the thread, of value z.
__device__ inline bool keeps(const BlockKept& kept, float z, int group, int element) {
  const int token = block_token(group, element);
  if (token == kept.always_kept) return true;
  if (kept.has_list) return (kept.listed >> (group * kLanesPerThread + element) & 1u) != 0;
  return z >= (token <= kept.last_tie ? kept.tie : kept.above);
}

// Whether any thread's elements of a block whose largest z is `max` can be kept; the same in all.
__device__ inline bool keeps_any(const BlockKept& kept, float max) {
  if (kept.always_kept >= 0 && kept.always_kept < kSoftmaxBlock) return true;
  if (kept.has_list) return __any_sync(kFullWarp, kept.listed != 0) != 0;
  return !(max < kept.tie);
}

// exp(z - max) of a whole block over the row's sum.
__device__ inline double block_mass(float sum, float block_max, float row_max) {
  return __dmul_rn(static_cast<double>(sum),
                   static_cast<double>(exp_nonpositive_cuda(__fsub_rn(block_max, row_max))));
}

// log of exp(z - max) / sum, in double, rounded once.
__device__ inline float softmax_logprob_cuda(float z, float max, double sum) {
  const double shifted = __dadd_rn(static_cast<double>(z), -static_cast<double>(max));
  return static_cast<float>(__dadd_rn(shifted, -log_cuda(sum)));
}

}  // namespace grpo::ops::cuda
