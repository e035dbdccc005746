#include "model/ops/cuda/column_sums.cuh"
#include "model/ops/cuda/entry_points.h"

namespace grpo::ops::cuda {

namespace {

template <typename D>
struct BiasGradientTerm {
  static constexpr int kWidth = kGroupWidth<D>;
  const D* dout;  // [T, O]
  int64_t size;   // O
  bool aligned;

  __device__ void add(float (&sums)[kWidth], int64_t t, int64_t first, int count) const {
    float d[kWidth];
    load_group(d, dout + t * size + first, count, aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] = __fadd_rn(sums[i], d[i]);
  }
};

}  // namespace

void linear_backward_bias(const Tensor& dbias, const Tensor& dout, bool accumulate,
                          OpContext& ctx) {
  const char* op = "linear_backward_bias";
  const int64_t size = dout.size(1);
  dispatch_device_type(op, dout.dtype(), [&]<typename D>(D) {
    constexpr int kWidth = kGroupWidth<D>;
    BiasGradientTerm<D> term{device_data<D>(dout), size, false};
    term.aligned = size % kWidth == 0 && is_aligned<kWidth>(term.dout);
    column_sums(op, dbias, term, dout.size(0), accumulate, ctx);
  });
}

}  // namespace grpo::ops::cuda
