// CUDA implementations behind reduce.h; operands are checked.
#pragma once

#include "model/ops/reduce.h"

namespace grpo::ops {

void sums_of_squares_cuda(std::span<double> sums, std::span<const Tensor> xs, OpContext& ctx);
void convert_cuda(const Tensor& destination, const Tensor& source, OpContext& ctx);
void add_into_cuda(const Tensor& y, const Tensor& x, OpContext& ctx);

}  // namespace grpo::ops
