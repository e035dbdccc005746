// CPU implementations behind linear.h; operands are checked. A activations, G dtype of out or dout.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

template <typename A, typename Out>
void linear_forward_cpu(const Tensor& out, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, OpContext& ctx);
template <typename A, typename G>
void linear_backward_input_cpu(const Tensor& dx, const Tensor& dout, const Tensor& weight,
                               bool accumulate, OpContext& ctx);
template <typename A, typename G>
void linear_backward_weight_cpu(const Tensor& dweight, const Tensor& dout, const Tensor& x,
                                bool accumulate, OpContext& ctx);
template <typename G>
void linear_backward_bias_cpu(const Tensor& dbias, const Tensor& dout, bool accumulate);

}  // namespace grpo::ops
