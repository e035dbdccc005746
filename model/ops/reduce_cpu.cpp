#include "model/ops/reduce_cpu.h"

#include <array>
#include <type_traits>

namespace grpo::ops {

double sum_of_squares_cpu(const Tensor& x) {
  constexpr int64_t kLanes = 16;  // partial sums by index modulo 16, added in lane order at the end
  std::array<double, kLanes> sums{};
  const float* data = x.data<float>();
  const int64_t count = x.num_elements();
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = data[i + lane];
      sums[static_cast<size_t>(lane)] += value * value;
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    const double value = data[i];
    sums[static_cast<size_t>(i - whole)] += value * value;
  }
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

template <typename To, typename From>
void convert_cpu(const Tensor& destination, const Tensor& source) {
  if constexpr (std::is_same_v<To, From>) {
    copy_tensor(destination, source);  // bits, so that a NaN keeps its payload
  } else {
    To* to = destination.data<To>();
    const From* from = source.data<From>();
    const int64_t count = source.num_elements();
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
  }
}

void add_into_cpu(const Tensor& y, const Tensor& x) {
  float* y_data = y.data<float>();
  const float* x_data = x.data<float>();
  const int64_t count = y.num_elements();
  for (int64_t i = 0; i < count; ++i) y_data[i] += x_data[i];
}

template void convert_cpu<float, float>(const Tensor&, const Tensor&);
template void convert_cpu<float, Bfloat16>(const Tensor&, const Tensor&);
template void convert_cpu<Bfloat16, float>(const Tensor&, const Tensor&);
template void convert_cpu<Bfloat16, Bfloat16>(const Tensor&, const Tensor&);

}  // namespace grpo::ops
