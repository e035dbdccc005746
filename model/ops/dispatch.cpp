#include "model/ops/dispatch.h"

#include "model/ops/cuda/entry_points.h"

namespace grpo::ops {

void require_cuda_operators() {
#ifndef GRPO_HAS_CUDA
  // Any entry point tells: all are defined, by a test's stand-in for a device, or none is.
  if (&cuda::linear_forward != nullptr) return;
  throw CudaError("this build has no CUDA operators; configure it with GRPO_CUDA=ON, or use cpu");
#endif
}

}  // namespace grpo::ops
