// Picking rows of a matrix and putting them back. T rows, R picked rows, D columns. A is float32 or
// bfloat16. An index out of range is an InternalError; on a CUDA device the kernel prints it and
// stops, and the next call that waits throws CudaError.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// out[i] = x[indices[i]].
void gather_rows(const Tensor& out,      // [R, D] A
                 const Tensor& x,        // [T, D] A
                 const Tensor& indices,  // [R] int32 in [0, T)
                 OpContext& ctx);

// out = 0, then out[indices[i]] = x[i]; indices are distinct.
void scatter_rows(const Tensor& out,      // [T, D] A
                  const Tensor& x,        // [R, D] A
                  const Tensor& indices,  // [R] int32 in [0, T)
                  OpContext& ctx);

}  // namespace grpo::ops
