// Token embedding lookup and its gradient. T tokens, V vocabulary, D model. A is float32 or
// bfloat16.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// Tokens outside [0, V) are an InternalError: callers validate ids where they enter the program. On
// a CUDA device the kernel prints the token and stops; the next call that waits throws CudaError.
void embedding_forward(const Tensor& out,     // [T, D] A
                       const Tensor& tokens,  // [T] int32
                       const Tensor& weight,  // [V, D] A
                       OpContext& ctx);

// Adds the rows of dout of equal tokens in ascending t (no atomics: same bits every run). With
// accumulate false, rows of absent tokens become zero.
void embedding_backward(const Tensor& dweight,  // [V, D] float32
                        const Tensor& dout,     // [T, D] A
                        const Tensor& tokens,   // [T] int32
                        bool accumulate, OpContext& ctx);

}  // namespace grpo::ops
