// Rectangles of stored matrices: moving them, and telling whether they moved and arrived. A matrix
// is float32 or bfloat16.
#pragma once

#include <cstdint>
#include <span>

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

struct MatrixRegion {
  Tensor matrix;  // [rows, cols]
  int64_t row;    // first of the rectangle
  int64_t col;
  int64_t num_rows;
  int64_t num_cols;
};

struct RegionCopy {
  MatrixRegion destination;
  MatrixRegion source;
};

// destination = source for each copy, rounded to nearest even where bfloat16 takes float32. Adds to
// `num_changed` how many elements have other bits than before. No destination overlaps another
// region of the call.
void copy_regions(std::span<const RegionCopy> copies,
                  const Tensor& num_changed,  // [1] int64, or absent
                  OpContext& ctx);

// Where a region lies in its logical tensor.
struct LogicalPlace {
  uint64_t tensor_key;
  int64_t row;
  int64_t col;
};

struct PlacedRegion {
  MatrixRegion region;
  LogicalPlace place;
};

// Adds, modulo 2^64, a hash of (tensor, row, column, bits as `dtype`) of every element: no order,
// so the sum over any cut of a tensor is the same on every device.
void add_fingerprints(const Tensor& sum,  // [1] int64
                      std::span<const PlacedRegion> regions, DType dtype, OpContext& ctx);

}  // namespace grpo::ops
