// CPU implementations behind reduce.h; operands are checked.
#pragma once

#include "model/core/tensor.h"

namespace grpo::ops {

double sum_of_squares_cpu(const Tensor& x);
template <typename To, typename From>
void convert_cpu(const Tensor& destination, const Tensor& source);
void add_into_cpu(const Tensor& y, const Tensor& x);

}  // namespace grpo::ops
