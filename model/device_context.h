// DeviceContext: what one rank computes with on its device.
#pragma once

#include <memory>

#include "model/ops/matrix_library.h"
#include "model/ops/op_context.h"

namespace grpo::model {

// One thread. Outlives everything that allocates from it. Throws CudaError as MatrixLibrary does.
struct DeviceContext {
  explicit DeviceContext(Device device, const Numerics& numerics = {});
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  Allocator allocator;
  Workspace workspace{allocator};
  std::unique_ptr<MatrixLibrary> matrix_library;  // null on a rehearsal device: nothing multiplies
  OpContext ctx;                                  // on the default stream
};

}  // namespace grpo::model
