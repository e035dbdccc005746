// Sums over a block's threads in a fixed order.
#pragma once

#include <cuda_runtime.h>

namespace grpo::ops::cuda {

__device__ inline float add_rounded(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double add_rounded(double a, double b) { return __dadd_rn(a, b); }

// The same sums of kCount values each in every thread of a block of kThreads: a butterfly over the
// lanes of each warp, then the warps in ascending order. Contains a barrier; scratch is free again
// after the next one.
template <int kThreads, int kCount, typename T>
__device__ inline void block_sums(T (&values)[kCount], T (&scratch)[kCount][kThreads / 32]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      values[i] = add_rounded(values[i], __shfl_xor_sync(0xffffffffu, values[i], distance));
    }
    if (threadIdx.x % 32 == 0) scratch[i][threadIdx.x / 32] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = scratch[i][0];
#pragma unroll
    for (int warp = 1; warp < kThreads / 32; ++warp) {
      values[i] = add_rounded(values[i], scratch[i][warp]);
    }
  }
}

// Of one value.
template <int kThreads, typename T>
__device__ inline T block_sum(T value, T (&scratch)[1][kThreads / 32]) {
  T values[1] = {value};
  block_sums<kThreads, 1>(values, scratch);
  return values[0];
}

}  // namespace grpo::ops::cuda
