#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"

namespace grpo::ops::cuda {

namespace {

template <typename D>
struct ResidualAdd {
  static constexpr int kWidth = kGroupWidth<D>;
  D* out;
  const D* a;
  const D* b;
  bool aligned;

  __device__ void operator()(int64_t, int64_t first, int count) const {
    float left[kWidth];
    float right[kWidth];
    load_group(left, a + first, count, aligned);
    load_group(right, b + first, count, aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) left[i] = __fadd_rn(left[i], right[i]);
    store_group(out + first, left, count, aligned);
  }
};

}  // namespace

void residual_add(const Tensor& out, const Tensor& a, const Tensor& b, OpContext& ctx) {
  const char* op = "residual_add";
  dispatch_device_type(op, out.dtype(), [&]<typename D>(D) {
    ResidualAdd<D> body{device_data<D>(out), device_data<D>(a), device_data<D>(b), false};
    constexpr int kWidth = kGroupWidth<D>;
    body.aligned =
        is_aligned<kWidth>(body.out) && is_aligned<kWidth>(body.a) && is_aligned<kWidth>(body.b);
    for_each_group(op, body, 1, out.num_elements(), ctx);
  });
}

}  // namespace grpo::ops::cuda
