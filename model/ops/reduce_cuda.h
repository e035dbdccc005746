// CUDA implementations behind reduce.h; operands are checked.
#pragma once

#include "model/ops/reduce.h"

namespace grpo::ops {

void largest_magnitudes_cuda(std::span<float> largest, std::span<const Tensor> xs, OpContext& ctx);
FixedPoint square_sum_cuda(std::span<const Tensor> xs, const SquareGrid& grid, OpContext& ctx);
void convert_cuda(const Tensor& destination, const Tensor& source, OpContext& ctx);
void add_into_cuda(const Tensor& y, const Tensor& x, OpContext& ctx);

}  // namespace grpo::ops
