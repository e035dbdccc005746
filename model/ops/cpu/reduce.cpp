#include <algorithm>
#include <bit>
#include <type_traits>

#include "model/ops/cpu/entry_points.h"

namespace grpo::ops::cpu {

float largest_magnitude(const Tensor& x) {
  uint32_t largest = 0;  // bits of magnitudes, ordered as the magnitudes are, NaNs above infinity
  const float* data = x.data<float>();
  const int64_t count = x.num_elements();
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(data[i]) & 0x7fffffffu);
  }
  return std::bit_cast<float>(largest);
}

FixedPoint square_sum(const Tensor& x, const SquareGrid& grid) {
  FixedPoint units = 0;
  const float* data = x.data<float>();
  const int64_t count = x.num_elements();
  for (int64_t begin = 0; begin < count; begin += kMaxSquaresInDouble) {
    const int64_t end = std::min<int64_t>(count, begin + kMaxSquaresInDouble);
    SquareParts sums{0.0, 0.0};
    for (int64_t i = begin; i < end; ++i) {
      const SquareParts parts = grid.split(data[i]);
      sums.high += parts.high;
      sums.low += parts.low;
    }
    units += grid.units(sums);
  }
  return units;
}

template <typename To, typename From>
void convert(const Tensor& destination, const Tensor& source) {
  if constexpr (std::is_same_v<To, From>) {
    copy_tensor(destination, source);  // bits, so that a NaN keeps its payload
  } else {
    To* to = destination.data<To>();
    const From* from = source.data<From>();
    const int64_t count = source.num_elements();
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
  }
}

void add_into(const Tensor& y, const Tensor& x) {
  float* y_data = y.data<float>();
  const float* x_data = x.data<float>();
  const int64_t count = y.num_elements();
  for (int64_t i = 0; i < count; ++i) y_data[i] += x_data[i];
}

template void convert<float, float>(const Tensor&, const Tensor&);
template void convert<float, Bfloat16>(const Tensor&, const Tensor&);
template void convert<Bfloat16, float>(const Tensor&, const Tensor&);
template void convert<Bfloat16, Bfloat16>(const Tensor&, const Tensor&);

}  // namespace grpo::ops::cpu
