// Elementwise optimizer updates on fp32 masters, written through to the compute weights. N
// elements.
#pragma once

#include <cstdint>

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

struct AdamWScalars {
  double learning_rate;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
  int64_t step;           // 1-based, for bias correction
  double gradient_scale;  // clipping coefficient, 1 for none
};

struct AdamWState {
  Tensor master;  // [N] float32
  Tensor m;       // [N] float32
  Tensor v;       // [N] float32
};

// AdamW with decoupled decay (Loshchilov & Hutter, 2019), the arithmetic of torch.optim.AdamW:
// w *= 1 - lr wd; m, v moments; w -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps).
void adamw_step(const AdamWState& state,
                const Tensor& weight,    // [N] float32 or bfloat16, receives the rounded master
                const Tensor& gradient,  // [N] float32
                const AdamWScalars& scalars, OpContext& ctx);

struct SgdScalars {
  double learning_rate;
  double weight_decay;  // decoupled
  double gradient_scale;
};

// Plain SGD: w *= 1 - lr wd; w -= lr g.
void sgd_step(const Tensor& master,    // [N] float32
              const Tensor& weight,    // [N] float32 or bfloat16
              const Tensor& gradient,  // [N] float32
              const SgdScalars& scalars, OpContext& ctx);

}  // namespace grpo::ops
