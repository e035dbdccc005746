// CUDA implementation of check_linear_exactness of linear.h; operands are checked.
#pragma once

#include "model/ops/linear.h"

namespace grpo::ops {

// T most rows, R distinct rows, I in features, O out features. A is the weight's dtype.
struct LinearProbe {
  Tensor x;       // [T, I] A, to be filled: row r repeats row r % R
  Tensor wanted;  // [R, O] A or float32, of the distinct rows
  Tensor out;     // [T, O] the same
};

void check_linear_exactness_cuda(const LinearProbe& probe, const Tensor& weight, const Tensor& bias,
                                 OpContext& ctx);

}  // namespace grpo::ops
