// Linear layer: out = x W^T + b, and its gradients.
// T tokens, I in features, O out features. A is the activations' dtype: float32 or bfloat16.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

constexpr int64_t kMaxSplitRows = 128;

// Every element of `out` is one ascending fp32 chain over I, started at 0, then + bias, rounded
// once to out's dtype: the same bits for every T, row offset and blocking (numerics contract 1).
// On the CPU, and for float32 on a GPU, a chain of fused multiply-adds; for bfloat16 on a GPU one
// of its tensor cores' products. Numerics::split_k lets the matrix library depart from this; where
// it is forced, products without the library have two chains an element, added in the end, for up
// to kMaxSplitRows rows.
void linear_forward(const Tensor& out,     // [T, O] A, or float32
                    const Tensor& x,       // [T, I] A
                    const Tensor& weight,  // [O, I] A
                    const Tensor& bias,    // [O] A, or absent
                    OpContext& ctx);

// Gradients are deterministic from run to run. A float32 dout of bfloat16 activations (of logits)
// is rounded once to bfloat16 on a GPU, which keeps its products on the tensor cores: its relative
// error of up to 2^-9 an element is that of any other gradient of bfloat16 activations. Sums stay
// float32.

// dx = dout W (+ dx).
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

// Puts equal rows of random numbers through linear_forward in every bucket of row counts up to
// max_rows (a few rows at least) and compares the results' bits. Throws CudaError that names shape,
// row count and algorithm when a row depends on the number of rows. For the start of a run, once a
// shape; on the CPU it does nothing. Takes its operands from the workspace, also on a rehearsal
// device.
void check_linear_exactness(const Tensor& weight,  // [O, I] A
                            const Tensor& bias,    // [O] A, or absent
                            DType product,         // A or float32
                            int64_t max_rows, OpContext& ctx);

}  // namespace grpo::ops
