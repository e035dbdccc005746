// What every operator is handed besides its operands.
#pragma once

#include "model/core/device.h"
#include "model/core/workspace.h"

namespace grpo {

class MatrixLibrary;

// Operators are free functions: outputs, inputs, scalars, then OpContext. Operands are checked
// once, for all devices, before the device's implementation runs; a wrong shape, dtype or device is
// an InternalError. Nothing is allocated but from the workspace. On the CPU an operator runs on the
// calling thread.
struct OpContext {
  Device device;
  Stream stream;
  Workspace& workspace;
  MatrixLibrary* matrix_library =
      nullptr;  // for products of bfloat16 on a CUDA device, else unused
};

}  // namespace grpo
