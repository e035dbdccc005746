// N elements, in groups as wide as four floats.
#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/optimizer_factors.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kStepWidth = kGroupWidth<float>;

template <typename W>
struct AdamWStep {
  static constexpr int kWidth = kStepWidth;
  float* master;
  float* m;
  float* v;
  W* weight;
  const float* gradient;
  AdamWFactors f;
  bool aligned;

  __device__ void operator()(int64_t, int64_t first, int count) const {
    float w[kWidth];
    float new_m[kWidth];
    float new_v[kWidth];
    float g[kWidth];
    load_group(w, master + first, count, aligned);
    load_group(new_m, m + first, count, aligned);
    load_group(new_v, v + first, count, aligned);
    load_group(g, gradient + first, count, aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float scaled = __fmul_rn(g[i], f.scale);
      new_m[i] = __fmaf_rn(f.beta1, new_m[i], __fmul_rn(f.one_minus_beta1, scaled));
      new_v[i] =
          __fmaf_rn(f.beta2, new_v[i], __fmul_rn(__fmul_rn(f.one_minus_beta2, scaled), scaled));
      const float denominator =
          __fadd_rn(__fdiv_rn(__fsqrt_rn(new_v[i]), f.root_correction2), f.epsilon);
      w[i] = __fsub_rn(__fmul_rn(w[i], f.decay),
                       __fmul_rn(f.step_size, __fdiv_rn(new_m[i], denominator)));
    }
    store_group(m + first, new_m, count, aligned);
    store_group(v + first, new_v, count, aligned);
    store_group(master + first, w, count, aligned);
    store_group(weight + first, w, count, aligned);
  }
};

template <typename W>
struct SgdStep {
  static constexpr int kWidth = kStepWidth;
  float* master;
  W* weight;
  const float* gradient;
  SgdFactors f;
  bool aligned;

  __device__ void operator()(int64_t, int64_t first, int count) const {
    float w[kWidth];
    float g[kWidth];
    load_group(w, master + first, count, aligned);
    load_group(g, gradient + first, count, aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      w[i] = __fsub_rn(__fmul_rn(w[i], f.decay), __fmul_rn(f.rate, __fmul_rn(g[i], f.scale)));
    }
    store_group(master + first, w, count, aligned);
    store_group(weight + first, w, count, aligned);
  }
};

}  // namespace

void adamw_step(const AdamWState& state, const Tensor& weight, const Tensor& gradient,
                const AdamWScalars& scalars, OpContext& ctx) {
  const char* op = "adamw_step";
  dispatch_device_type(op, weight.dtype(), [&]<typename W>(W) {
    AdamWStep<W> body{state.master.data<float>(),
                      state.m.data<float>(),
                      state.v.data<float>(),
                      device_data<W>(weight),
                      gradient.data<float>(),
                      AdamWFactors(scalars),
                      false};
    body.aligned = is_aligned<kStepWidth>(body.master) && is_aligned<kStepWidth>(body.m) &&
                   is_aligned<kStepWidth>(body.v) && is_aligned<kStepWidth>(body.weight) &&
                   is_aligned<kStepWidth>(body.gradient);
    for_each_group(op, body, 1, weight.num_elements(), ctx);
  });
}

void sgd_step(const Tensor& master, const Tensor& weight, const Tensor& gradient,
              const SgdScalars& scalars, OpContext& ctx) {
  const char* op = "sgd_step";
  dispatch_device_type(op, weight.dtype(), [&]<typename W>(W) {
    SgdStep<W> body{master.data<float>(), device_data<W>(weight), gradient.data<float>(),
                    SgdFactors(scalars), false};
    body.aligned = is_aligned<kStepWidth>(body.master) && is_aligned<kStepWidth>(body.weight) &&
                   is_aligned<kStepWidth>(body.gradient);
    for_each_group(op, body, 1, weight.num_elements(), ctx);
  });
}

}  // namespace grpo::ops::cuda
