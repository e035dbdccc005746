// SwiGLU (Shazeer, 2020) on the fused gate+up product: out = silu(gate) * up.
// T tokens, F feed-forward size. A is float32 or bfloat16.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

void swiglu_forward(const Tensor& out,      // [T, F] A
                    const Tensor& gate_up,  // [T, 2F] A: gate columns, then up columns
                    OpContext& ctx);

void swiglu_backward(const Tensor& dgate_up,  // [T, 2F] A
                     const Tensor& dout,      // [T, F] A
                     const Tensor& gate_up,   // [T, 2F] A
                     OpContext& ctx);

}  // namespace grpo::ops
