// CUDA implementations behind region.h; operands are checked.
#pragma once

#include "model/ops/region.h"

namespace grpo::ops {

void copy_regions_cuda(std::span<const RegionCopy> copies, const Tensor& num_changed,
                       OpContext& ctx);
void add_fingerprints_cuda(const Tensor& sum, std::span<const PlacedRegion> regions, DType dtype,
                           OpContext& ctx);

}  // namespace grpo::ops
