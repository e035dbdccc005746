// CPU implementations behind reduce.h; operands are checked.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/fixed_point_square.h"

namespace grpo::ops {

float largest_magnitude_cpu(const Tensor& x);
FixedPoint square_sum_cpu(const Tensor& x, const SquareGrid& grid);
template <typename To, typename From>
void convert_cpu(const Tensor& destination, const Tensor& source);
void add_into_cpu(const Tensor& y, const Tensor& x);

}  // namespace grpo::ops
