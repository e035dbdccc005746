#include <algorithm>
#include <array>

#include "model/ops/cpu/entry_points.h"

namespace grpo::ops::cpu {

namespace {

// In blocks, so that `out` may be one of the rows.
template <typename T>
void sum_rows(T* out, std::span<const Tensor> rows) {
  constexpr int64_t kBlock = 1024;
  const int64_t count = rows[0].num_elements();
  std::array<T, kBlock> sums;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    std::copy_n(static_cast<const T*>(rows[0].raw()) + begin, size, sums.data());
    for (const Tensor& row : rows.subspan(1)) {
      const T* values = static_cast<const T*>(row.raw()) + begin;
      for (int64_t i = 0; i < size; ++i) sums[static_cast<size_t>(i)] += values[i];
    }
    std::copy_n(sums.data(), size, out + begin);
  }
}

}  // namespace

void ordered_sum(const Tensor& out, std::span<const Tensor> rows) {
  if (out.dtype() == DType::kFloat32) {
    sum_rows(out.data<float>(), rows);
  } else {
    sum_rows(static_cast<uint64_t*>(out.raw()), rows);  // signed overflow would be undefined
  }
}

}  // namespace grpo::ops::cpu
