// CUDA implementations behind region.h; operands are checked.
#pragma once

#include "model/ops/region.h"

namespace grpo::ops {

void copy_region_cuda(const Region& destination, const Region& source, const Tensor& num_changed,
                      OpContext& ctx);
void add_fingerprint_cuda(const Tensor& sum, const Region& region, const LogicalPlace& place,
                          DType dtype, OpContext& ctx);

}  // namespace grpo::ops
