// T tokens, F feed-forward size.
#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/cuda/float_math.cuh"

namespace grpo::ops::cuda {

namespace {

template <typename D>
struct SwigluForward {
  static constexpr int kWidth = kGroupWidth<D>;
  D* out;            // [T, F]
  const D* gate_up;  // [T, 2F]
  int64_t size;      // F
  bool aligned;

  __device__ void operator()(int64_t row, int64_t first, int count) const {
    const D* gate = gate_up + row * 2 * size + first;
    float g[kWidth];
    float u[kWidth];
    load_group(g, gate, count, aligned);
    load_group(u, gate + size, count, aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) g[i] = __fmul_rn(__fmul_rn(g[i], sigmoid_cuda(g[i])), u[i]);
    store_group(out + row * size + first, g, count, aligned);
  }
};

// silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g).
template <typename D>
struct SwigluBackward {
  static constexpr int kWidth = kGroupWidth<D>;
  D* dgate_up;       // [T, 2F]
  const D* dout;     // [T, F]
  const D* gate_up;  // [T, 2F]
  int64_t size;      // F
  bool aligned;

  __device__ void operator()(int64_t row, int64_t first, int count) const {
    const int64_t at = row * 2 * size + first;
    float g[kWidth];
    float u[kWidth];
    float d[kWidth];
    load_group(g, gate_up + at, count, aligned);
    load_group(u, gate_up + at + size, count, aligned);
    load_group(d, dout + row * size + first, count, aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float s = sigmoid_cuda(g[i]);
      const float slope = __fmaf_rn(g[i], __fsub_rn(1.0f, s), 1.0f);
      u[i] = __fmul_rn(__fmul_rn(__fmul_rn(d[i], u[i]), s), slope);
      d[i] = __fmul_rn(d[i], __fmul_rn(g[i], s));
    }
    store_group(dgate_up + at, u, count, aligned);
    store_group(dgate_up + at + size, d, count, aligned);
  }
};

}  // namespace

void swiglu_forward(const Tensor& out, const Tensor& gate_up, OpContext& ctx) {
  const char* op = "swiglu_forward";
  const int64_t size = out.size(1);
  dispatch_device_type(op, out.dtype(), [&]<typename D>(D) {
    constexpr int kWidth = kGroupWidth<D>;
    SwigluForward<D> body{device_data<D>(out), device_data<D>(gate_up), size, false};
    body.aligned =
        size % kWidth == 0 && is_aligned<kWidth>(body.out) && is_aligned<kWidth>(body.gate_up);
    for_each_group(op, body, out.size(0), size, ctx);
  });
}

void swiglu_backward(const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up,
                     OpContext& ctx) {
  const char* op = "swiglu_backward";
  const int64_t size = dout.size(1);
  dispatch_device_type(op, dout.dtype(), [&]<typename D>(D) {
    constexpr int kWidth = kGroupWidth<D>;
    SwigluBackward<D> body{device_data<D>(dgate_up), device_data<D>(dout), device_data<D>(gate_up),
                           size, false};
    body.aligned = size % kWidth == 0 && is_aligned<kWidth>(body.dgate_up) &&
                   is_aligned<kWidth>(body.dout) && is_aligned<kWidth>(body.gate_up);
    for_each_group(op, body, dout.size(0), size, ctx);
  });
}

}  // namespace grpo::ops::cuda
