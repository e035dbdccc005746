// The operators of region.h with one region a call.
#pragma once

#include "model/ops/region.h"

namespace grpo::ops {

inline void copy_region(const MatrixRegion& destination, const MatrixRegion& source,
                        const Tensor& num_changed, OpContext& ctx) {
  const RegionCopy copy{destination, source};
  copy_regions({&copy, 1}, num_changed, ctx);
}

inline void add_fingerprint(const Tensor& sum, const MatrixRegion& region,
                            const LogicalPlace& place, DType dtype, OpContext& ctx) {
  const PlacedRegion placed{region, place};
  add_fingerprints(sum, {&placed, 1}, dtype, ctx);
}

}  // namespace grpo::ops
