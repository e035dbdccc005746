// Reductions and conversions over flat arrays. N elements.
#pragma once

#include <span>

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// Sum of squares in double, in a fixed order (one for each kind of device). NaN or infinity in the
// input gives a non-finite result. Waits for the device.
double sum_of_squares(const Tensor& x,  // [N] float32
                      OpContext& ctx);

// The same of several arrays, each by itself, in one wait.
void sums_of_squares(std::span<double> sums,      // [arrays], host
                     std::span<const Tensor> xs,  // [arrays], each [N] float32
                     OpContext& ctx);

// destination[i] = source[i] converted (bfloat16 rounds to nearest even). Equal dtypes copy bits.
void convert(const Tensor& destination,  // [N] float32 or bfloat16
             const Tensor& source,       // [N] float32 or bfloat16
             OpContext& ctx);

// y += x.
void add_into(const Tensor& y,  // [N] float32
              const Tensor& x,  // [N] float32
              OpContext& ctx);

}  // namespace grpo::ops
