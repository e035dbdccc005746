// N elements.
#include "model/ops/ordered_sum.h"

#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"

namespace grpo::ops::cuda {

namespace {

__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline uint64_t add(uint64_t a, uint64_t b) { return a + b; }

template <typename T, int kRows>
struct SumRows {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  T* out;
  const T* rows[kRows];
  bool aligned;

  __device__ void operator()(int64_t, int64_t first, int count) const {
    Packet<T, kWidth> packets[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) packets[r] = load(rows[r] + first, count);
    Packet<T, kWidth> sum = packets[0];
#pragma unroll
    for (int r = 1; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        sum.elements[i] = add(sum.elements[i], packets[r].elements[i]);
      }
    }
    store_packet<kWidth>(out + first, sum, count, aligned);
  }

  __device__ Packet<T, kWidth> load(const T* source, int count) const {
    if (aligned && count == kWidth) return *reinterpret_cast<const Packet<T, kWidth>*>(source);
    Packet<T, kWidth> packet;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) packet.elements[i] = i < count ? source[i] : T(0);
    return packet;
  }
};

template <typename T, int kRows>
void sum_rows(const Tensor& out, std::span<const Tensor> rows, OpContext& ctx) {
  if constexpr (kRows > 1) {
    if (rows.size() < static_cast<size_t>(kRows)) return sum_rows<T, kRows - 1>(out, rows, ctx);
  }
  SumRows<T, kRows> body{};
  body.out = static_cast<T*>(out.raw());
  body.aligned = is_aligned<SumRows<T, kRows>::kWidth>(body.out);
  for (int r = 0; r < kRows; ++r) {
    body.rows[r] = static_cast<const T*>(rows[static_cast<size_t>(r)].raw());
    body.aligned = body.aligned && is_aligned<SumRows<T, kRows>::kWidth>(body.rows[r]);
  }
  for_each_group("ordered_sum", body, 1, out.num_elements(), ctx);
}

}  // namespace

void ordered_sum(const Tensor& out, std::span<const Tensor> rows, OpContext& ctx) {
  if (out.dtype() == DType::kFloat32) {
    sum_rows<float, kMaxRowsAtOnce>(out, rows, ctx);
  } else {
    sum_rows<uint64_t, kMaxRowsAtOnce>(out, rows, ctx);
  }
}

}  // namespace grpo::ops::cuda
