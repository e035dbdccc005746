// What flows from layer to layer. T tokens, D model. A is float32 or bfloat16.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::model {

// The stream's value is x, plus delta while that is pending: each layer leaves what it adds, and
// the next norm makes the sum.
struct ResidualStream {
  Tensor x;      // [T, D] A
  Tensor delta;  // [T, D] A
  bool is_pending = false;
};

// normed = the norm of the stream's value, which becomes its x: in new memory of the workspace if
// the x before is still needed.
void normalize(ResidualStream& stream,
               const Tensor& normed,  // [T, D] A
               const Tensor& rstd,    // [T] float32, or absent
               const Tensor& weight,  // [D] A
               float epsilon, bool keeps_x, OpContext& ctx);

// Makes the stream's value its x, in place.
void add_up(ResidualStream& stream, OpContext& ctx);

}  // namespace grpo::model
