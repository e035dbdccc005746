// Launching kernels on an operator's device and stream.
#pragma once

#include <limits>

#include "model/core/cuda_check.h"
#include "model/core/errors.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

constexpr int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Of no blocks is no launch. A launch that fails throws CudaError with the operator's name; a
// kernel that fails shows at the next call that waits.
template <typename... Parameters, typename... Arguments>
void launch(const char* op, void (*kernel)(Parameters...), int64_t num_blocks, int num_threads,
            const OpContext& ctx, const Arguments&... arguments) {
  if (num_blocks == 0) return;
  CHECK(num_blocks <= std::numeric_limits<int>::max(), "{}: {} blocks", op, num_blocks);
  CUDA_CHECK(cudaSetDevice(ctx.device.index));
  kernel<<<static_cast<unsigned>(num_blocks), static_cast<unsigned>(num_threads), 0,
           cuda_stream(ctx.stream)>>>(arguments...);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw_cuda_error(__FILE__, __LINE__, op, error);
}

}  // namespace grpo::ops
