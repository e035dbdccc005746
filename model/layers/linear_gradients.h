// The three gradients of a linear layer through a Pass, in one place for all layers.
#pragma once

#include "model/core/parameter_store.h"
#include "model/ops/op_context.h"

namespace grpo::model {

struct LinearBackward {
  Tensor dx;    // [T, I] A, overwritten
  Tensor dout;  // [T, O] A
  Tensor x;     // [T, I] A
};

// Uses `weight` (a read that contributes): dx from it, then its gradient.
void linear_backward(Pass& pass, ParameterId weight, const LinearBackward& tensors, OpContext& ctx);

// The bias's gradient (a use that contributes without a read).
void bias_backward(Pass& pass, ParameterId bias, const Tensor& dout, OpContext& ctx);

struct NormBackward {
  Tensor dx;    // [T, D] A, added to
  Tensor dout;  // [T, D] A
  Tensor x;     // [T, D] A
  Tensor rstd;  // [T] float32
};

// Uses the norm's weight (a read that contributes).
void norm_backward(Pass& pass, ParameterId weight, const NormBackward& tensors, OpContext& ctx);

}  // namespace grpo::model
