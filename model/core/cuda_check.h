// Checks of CUDA calls, for the *_cuda.cu files.
#pragma once

#include <cuda_runtime.h>

#include "model/core/device.h"

namespace grpo {

// Throws CudaError: the call's text, CUDA's name and words for the error, the place.
[[noreturn]] void throw_cuda_error(const char* file, int line, const char* call, cudaError_t error);

inline cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace grpo

// A failed kernel shows at a later call: the error names the call that found it.
#define CUDA_CHECK(call)                                                     \
  do {                                                                       \
    const cudaError_t cuda_check_error = (call);                             \
    if (cuda_check_error != cudaSuccess)                                     \
      ::grpo::throw_cuda_error(__FILE__, __LINE__, #call, cuda_check_error); \
  } while (false)
