// Linear layer: out = x W^T + b, and its gradients.
// T tokens, I in features, O out features. A is the activations' dtype: float32 or bfloat16.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// Every element of `out` is one ascending fp32 fma chain over I, started at 0, then + bias, rounded
// once to out's dtype: the same bits for every T, row offset and blocking (numerics contract 1).
void linear_forward(const Tensor& out,     // [T, O] A, or float32
                    const Tensor& x,       // [T, I] A
                    const Tensor& weight,  // [O, I] A
                    const Tensor& bias,    // [O] A, or absent
                    OpContext& ctx);

// dx = dout W (+ dx). Deterministic from run to run.
void linear_backward_input(const Tensor& dx,      // [T, I] A
                           const Tensor& dout,    // [T, O] A or float32
                           const Tensor& weight,  // [O, I] A
                           bool accumulate, OpContext& ctx);

// dweight = dout^T x (+ dweight).
void linear_backward_weight(const Tensor& dweight,  // [O, I] float32
                            const Tensor& dout,     // [T, O] A or float32
                            const Tensor& x,        // [T, I] A
                            bool accumulate, OpContext& ctx);

// dbias = sum over rows of dout (+ dbias).
void linear_backward_bias(const Tensor& dbias,  // [O] float32
                          const Tensor& dout,   // [T, O] A or float32
                          bool accumulate, OpContext& ctx);

}  // namespace grpo::ops
