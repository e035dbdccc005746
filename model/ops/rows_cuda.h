// CUDA implementations behind rows.h; operands are checked, indices are not. The lookup of
// embedding.h is gather_rows too.
#pragma once

#include "model/ops/rows.h"

namespace grpo::ops {

void gather_rows_cuda(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext& ctx);
void scatter_rows_cuda(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext& ctx);

}  // namespace grpo::ops
