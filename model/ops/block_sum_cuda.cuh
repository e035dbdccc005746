// Sums over a block's threads in a fixed order.
#pragma once

#include <cuda_runtime.h>

namespace grpo::ops {

__device__ inline float add_rounded(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double add_rounded(double a, double b) { return __dadd_rn(a, b); }

// The same sum in every thread of a block of kThreads: a butterfly over the lanes of each warp,
// then the warps in ascending order. Contains a barrier; scratch is free again after the next one.
template <int kThreads, typename T>
__device__ inline T block_sum(T value, T (&scratch)[kThreads / 32]) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = add_rounded(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = scratch[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) sum = add_rounded(sum, scratch[warp]);
  return sum;
}

}  // namespace grpo::ops
