// CPU implementations behind rows.h; operands are checked, indices are not.
#pragma once

#include "model/core/tensor.h"

namespace grpo::ops {

void gather_rows_cpu(const Tensor& out, const Tensor& x, const Tensor& indices);
void scatter_rows_cpu(const Tensor& out, const Tensor& x, const Tensor& indices);

}  // namespace grpo::ops
