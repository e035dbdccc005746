// CPU implementation behind ordered_sum.h; operands are checked.
#pragma once

#include <span>

#include "model/core/tensor.h"

namespace grpo::ops {

void ordered_sum_cpu(const Tensor& out, std::span<const Tensor> rows);  // up to kMaxRowsAtOnce rows

}  // namespace grpo::ops
