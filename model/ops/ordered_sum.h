// Sums of rows in their order, for collectives whose result must not depend on the library beneath.
// N elements.
#pragma once

#include <span>

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// out[i] = rows[0][i] + rows[1][i] + ... added in this order. `out` may be one of the rows; among
// more than kMaxRowsAtOnce rows it must be one of the first kMaxRowsAtOnce.
void ordered_sum(const Tensor& out,             // [N] float32 or int64 (wraps modulo 2^64)
                 std::span<const Tensor> rows,  // each [N] of the same dtype; at least one
                 OpContext& ctx);

inline constexpr int kMaxRowsAtOnce = 8;

}  // namespace grpo::ops
