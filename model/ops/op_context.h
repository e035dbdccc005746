// What every operator is handed besides its operands.
#pragma once

#include "model/core/device.h"
#include "model/core/workspace.h"

namespace grpo {

class MatrixLibrary;

// Whether a forward product may cut its sums into parts that are added in the end, which makes a
// row's bits depend on how many rows there are.
enum class SplitK : uint8_t {
  kNever,    // exact numerics
  kAllowed,  // fast numerics: where the matrix library finds it faster; elsewhere as kNever
  kForced,   // a negative control: wherever there is a way to
};

// How operators compute. The default is the numerics contract's; a negative control
// (numerics.inject_fault) departs from it on purpose.
struct Numerics {
  SplitK split_k = SplitK::kNever;
  bool narrow_kv_tiles = false;  // attention_forward walks tiles of kNarrowTileKeys
};

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
  Numerics numerics = {};
};

}  // namespace grpo
