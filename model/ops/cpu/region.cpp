#include <bit>

#include "model/core/counter_rng.h"
#include "model/ops/cpu/entry_points.h"
#include "model/ops/dispatch.h"

namespace grpo::ops::cpu {

namespace {

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
uint32_t bits_of(Bfloat16 value) { return value.bits; }

template <typename To, typename From>
To as(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;  // bits, so that a NaN keeps its payload
  } else {
    return static_cast<To>(static_cast<float>(value));
  }
}

template <typename T>
T* row_of(const MatrixRegion& region, int64_t row) {
  return region.matrix.data<T>() + (region.row + row) * region.matrix.size(1) + region.col;
}

template <typename To, typename From>
int64_t copy_counting(const MatrixRegion& destination, const MatrixRegion& source) {
  int64_t num_changed = 0;
  for (int64_t r = 0; r < source.num_rows; ++r) {
    To* to = row_of<To>(destination, r);
    const From* from = row_of<From>(source, r);
    for (int64_t c = 0; c < source.num_cols; ++c) {
      const To value = as<To>(from[c]);
      num_changed += bits_of(to[c]) != bits_of(value) ? 1 : 0;
      to[c] = value;
    }
  }
  return num_changed;
}

template <typename As, typename From>
uint64_t fingerprint(const MatrixRegion& region, const LogicalPlace& place) {
  uint64_t sum = 0;
  for (int64_t r = 0; r < region.num_rows; ++r) {
    const uint64_t row_key = mix_bits(place.tensor_key + static_cast<uint64_t>(place.row + r));
    const From* from = row_of<From>(region, r);
    for (int64_t c = 0; c < region.num_cols; ++c) {
      const auto column = static_cast<uint64_t>(place.col + c);
      const uint64_t bits = bits_of(as<As>(from[c]));
      sum += mix_bits(row_key ^ (column * 0x9E3779B97F4A7C15ull + bits));
    }
  }
  return sum;
}

}  // namespace

void copy_region(const MatrixRegion& destination, const MatrixRegion& source,
                 const Tensor& num_changed) {
  int64_t count = 0;
  dispatch_dtype("copy_region", destination.matrix.dtype(), [&]<typename To>(To) {
    dispatch_dtype("copy_region", source.matrix.dtype(), [&]<typename From>(From) {
      count = copy_counting<To, From>(destination, source);
    });
  });
  if (!num_changed.is_absent()) *num_changed.data<int64_t>() += count;
}

void add_fingerprint(const Tensor& sum, const MatrixRegion& region, const LogicalPlace& place,
                     DType dtype) {
  uint64_t added = 0;
  dispatch_dtype("add_fingerprint", dtype, [&]<typename As>(As) {
    dispatch_dtype("add_fingerprint", region.matrix.dtype(),
                   [&]<typename From>(From) { added = fingerprint<As, From>(region, place); });
  });
  int64_t* total = sum.data<int64_t>();
  *total = static_cast<int64_t>(static_cast<uint64_t>(*total) + added);
}

}  // namespace grpo::ops::cpu
