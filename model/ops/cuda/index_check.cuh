// Checks of indices that only the device sees.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

namespace grpo::ops::cuda {

static __device__ __noinline__ void stop_at_index(int64_t index, int64_t row, int64_t limit) {
  printf("CUDA operator: index %lld of row %lld is outside [0, %lld)\n",
         static_cast<long long>(index), static_cast<long long>(row), static_cast<long long>(limit));
  __trap();
}

// Stops the kernel unless index is in [0, limit): the next call that waits throws CudaError.
__device__ inline void check_index(int64_t index, int64_t row, int64_t limit) {
  if (index < 0 || index >= limit) stop_at_index(index, row, limit);
}

}  // namespace grpo::ops::cuda
