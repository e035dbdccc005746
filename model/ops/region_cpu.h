// CPU implementations behind region.h; operands are checked.
#pragma once

#include "model/ops/region.h"

namespace grpo::ops {

void copy_region_cpu(const Region& destination, const Region& source, const Tensor& num_changed);
void add_fingerprint_cpu(const Tensor& sum, const Region& region, const LogicalPlace& place,
                         DType dtype);

}  // namespace grpo::ops
