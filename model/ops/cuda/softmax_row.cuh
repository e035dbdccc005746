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

// A cut as one block sees it, and the token that counts as kept in any case: tokens counted from
// the block's first.
struct KeptTokens {
  float threshold;
  int last_tie;
  int always_kept;
};

__device__ inline KeptTokens kept_tokens(const TokenCut* cuts, const int32_t* targets, int64_t t,
                                         int64_t begin) {
  const int first = static_cast<int>(begin);
  return {cuts[t].threshold, cuts[t].last_tie - first,
          targets == nullptr ? -1 : targets[t] - first};
}

__device__ inline bool keeps(const KeptTokens& kept, float z, int token) {
  return z > kept.threshold || (z == kept.threshold && token <= kept.last_tie) ||
         token == kept.always_kept;
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
