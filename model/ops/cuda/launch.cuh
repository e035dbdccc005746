// Launching kernels on an operator's device and stream.
#pragma once

#include <limits>

#include "model/core/cuda_check.h"
#include "model/core/errors.h"
#include "model/ops/op_context.h"

namespace grpo::ops::cuda {

constexpr int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

// With shared_bytes of dynamic shared memory a block, up to what the device has. Of no blocks is no
// launch. A launch that fails throws CudaError with the operator's name; a kernel that fails shows
// at the next call that waits.
template <typename... Parameters, typename... Arguments>
void launch_with_shared(const char* op, void (*kernel)(Parameters...), int64_t num_blocks,
                        int num_threads, int64_t shared_bytes, const OpContext& ctx,
                        const Arguments&... arguments) {
  constexpr int64_t kUnasked = 48 << 10;  // bytes that every kernel may use
  if (num_blocks == 0) return;
  CHECK(num_blocks <= std::numeric_limits<int>::max(), "{}: {} blocks", op, num_blocks);
  CUDA_CHECK(cudaSetDevice(ctx.device.index));
  if (shared_bytes > kUnasked) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)));
  }
  kernel<<<static_cast<unsigned>(num_blocks), static_cast<unsigned>(num_threads),
           static_cast<size_t>(shared_bytes), cuda_stream(ctx.stream)>>>(arguments...);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw_cuda_error(__FILE__, __LINE__, op, error);
}

template <typename... Parameters, typename... Arguments>
void launch(const char* op, void (*kernel)(Parameters...), int64_t num_blocks, int num_threads,
            const OpContext& ctx, const Arguments&... arguments) {
  launch_with_shared(op, kernel, num_blocks, num_threads, 0, ctx, arguments...);
}

}  // namespace grpo::ops::cuda
