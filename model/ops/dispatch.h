// From runtime device and dtype to the implementation compiled for them.
#pragma once

#include <utility>

#include "model/core/dtype.h"
#include "model/core/errors.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// Runs the implementation for the operator's device. A device without one is an error that says so.
template <typename CpuFunction>
void dispatch_device(const char* op, const OpContext& ctx, CpuFunction&& cpu) {
  switch (ctx.device.kind) {
    case DeviceKind::kCpu:
      return std::forward<CpuFunction>(cpu)();
    case DeviceKind::kCuda:
      throw Error(ExitCode::kOther,
                  fmt::format("{}: no implementation for {} in this build; use cpu", op,
                              device_name(ctx.device)));
  }
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

// Both at once, for operators with one activation dtype.
template <typename CpuFunction>
void dispatch(const char* op, DType dtype, const OpContext& ctx, CpuFunction&& cpu) {
  dispatch_device(op, ctx, [&] { dispatch_dtype(op, dtype, cpu); });
}

}  // namespace grpo::ops
