// From runtime device and dtype to the implementation compiled for them.
#pragma once

#include <utility>

#include "model/core/dtype.h"
#include "model/core/errors.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// Whether an operator takes memory from the workspace. On a rehearsal device those that do are
// called too, to take it and return; the others have nothing to do.
enum class Scratch : bool { kNone, kTakes };

// Throws CudaError in a build without CUDA operators.
void require_cuda_operators();

// Runs the implementation for the operator's device.
template <Scratch kScratch = Scratch::kNone, typename CpuFunction, typename CudaFunction>
void dispatch_device(const OpContext& ctx, CpuFunction&& cpu, CudaFunction&& cuda) {
  // CUDA operators take their scratch unrehearsed.
  const bool takes = kScratch == Scratch::kTakes && ctx.device.kind == DeviceKind::kCpu;
  if (ctx.device.is_rehearsal && !takes) return;
  const Workspace::OperatorScope scope(ctx.workspace);
  switch (ctx.device.kind) {
    case DeviceKind::kCpu:
      return std::forward<CpuFunction>(cpu)();
    case DeviceKind::kCuda:
      require_cuda_operators();
      return std::forward<CudaFunction>(cuda)();
  }
}

// For operators that only the CPU has; elsewhere an error that says so.
template <Scratch kScratch = Scratch::kNone, typename CpuFunction>
void dispatch_device(const char* op, const OpContext& ctx, CpuFunction&& cpu) {
  dispatch_device<kScratch>(ctx, std::forward<CpuFunction>(cpu), [&] {
    throw CudaError(fmt::format("{}: there is no CUDA implementation for {}; use cpu", op,
                                device_name(ctx.device)));
  });
}

// Calls function(float{}) or function(Bfloat16{}), after the dtype of activations and weights.
template <typename Function>
void dispatch_dtype(const char* op, DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kFloat32:
      return std::forward<Function>(function)(float{});
    case DType::kBfloat16:
      return std::forward<Function>(function)(Bfloat16{});
    default:
      throw InternalError(
          fmt::format("{}: dtype {} is neither float32 nor bfloat16", op, dtype_name(dtype)));
  }
}

// Both at once, for operators with one activation dtype. The CUDA function chooses by dtype itself,
// next to its kernels: device and host name bfloat16 differently.
template <Scratch kScratch = Scratch::kNone, typename CpuFunction, typename CudaFunction>
void dispatch(const char* op, DType dtype, const OpContext& ctx, CpuFunction&& cpu,
              CudaFunction&& cuda) {
  dispatch_device<kScratch>(
      ctx, [&] { dispatch_dtype(op, dtype, cpu); }, std::forward<CudaFunction>(cuda));
}

template <Scratch kScratch = Scratch::kNone, typename CpuFunction>
void dispatch(const char* op, DType dtype, const OpContext& ctx, CpuFunction&& cpu) {
  dispatch_device<kScratch>(op, ctx, [&] { dispatch_dtype(op, dtype, cpu); });
}

}  // namespace grpo::ops
