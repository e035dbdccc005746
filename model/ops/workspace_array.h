// Scratch of types that are no tensor's.
#pragma once

#include <cstdint>

#include "model/ops/op_context.h"

namespace grpo::ops {

// Uninitialised, in the enclosing Workspace::Scope.
template <typename T>
T* workspace_array(OpContext& ctx, int64_t count) {
  const auto bytes = count * static_cast<int64_t>(sizeof(T));
  return static_cast<T*>(ctx.workspace.take(DType::kUint8, {bytes}).raw());
}

}  // namespace grpo::ops
