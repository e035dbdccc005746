// Reductions and conversions over flat arrays. N elements.
#pragma once

#include <span>

#include "model/core/tensor.h"
#include "model/ops/fixed_point_square.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// The largest |x| of each array: 0 of an empty one, infinity or NaN where it has any. Waits for the
// device.
void largest_magnitudes(std::span<float> largest,    // [arrays], host
                        std::span<const Tensor> xs,  // [arrays], each [N] float32
                        OpContext& ctx);

// The sum of all elements' squares in units of the grid: the same number however elements are
// ordered, split over arrays and calls, or dealt to ranks. Each square is off by less than 2^-90 of
// the grid's largest. No magnitude is above the grid's. Waits for the device.
FixedPoint square_sum(std::span<const Tensor> xs,  // each [N] float32
                      const SquareGrid& grid, OpContext& ctx);

// destination[i] = source[i] converted (bfloat16 rounds to nearest even). Equal dtypes copy bits.
void convert(const Tensor& destination,  // [N] float32 or bfloat16
             const Tensor& source,       // [N] float32 or bfloat16
             OpContext& ctx);

// y += x.
void add_into(const Tensor& y,  // [N] float32
              const Tensor& x,  // [N] float32
              OpContext& ctx);

}  // namespace grpo::ops
