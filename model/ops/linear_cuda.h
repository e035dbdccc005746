// CUDA implementations behind linear.h; operands are checked.
#pragma once

#include <string>

#include "model/ops/linear.h"

namespace grpo::ops {

void linear_forward_cuda(const Tensor& out, const Tensor& x, const Tensor& weight,
                         const Tensor& bias, OpContext& ctx);
void linear_backward_input_cuda(const Tensor& dx, const Tensor& dout, const Tensor& weight,
                                bool accumulate, OpContext& ctx);
void linear_backward_weight_cuda(const Tensor& dweight, const Tensor& dout, const Tensor& x,
                                 bool accumulate, OpContext& ctx);
// What linear_forward_cuda would run, for messages.
std::string linear_algorithm_cuda(const Tensor& out, const Tensor& x, const Tensor& weight,
                                  const Tensor& bias, OpContext& ctx);

}  // namespace grpo::ops
