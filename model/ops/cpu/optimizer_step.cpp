#include <cmath>

#include "model/ops/cpu/entry_points.h"
#include "model/ops/optimizer_factors.h"

namespace grpo::ops::cpu {

template <typename W>
void adamw_step(const AdamWState& state, const Tensor& weight, const Tensor& gradient,
                const AdamWScalars& scalars) {
  const AdamWFactors f(scalars);
  float* master = state.master.data<float>();
  float* m = state.m.data<float>();
  float* v = state.v.data<float>();
  W* out = weight.data<W>();
  const float* g = gradient.data<float>();
  const int64_t count = state.master.num_elements();
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = g[i] * f.scale;
    const float new_m = std::fma(f.beta1, m[i], f.one_minus_beta1 * scaled);
    const float new_v = std::fma(f.beta2, v[i], f.one_minus_beta2 * scaled * scaled);
    const float denominator = std::sqrt(new_v) / f.root_correction2 + f.epsilon;
    const float new_master = master[i] * f.decay - f.step_size * (new_m / denominator);
    m[i] = new_m;
    v[i] = new_v;
    master[i] = new_master;
    out[i] = static_cast<W>(new_master);
  }
}

template <typename W>
void sgd_step(const Tensor& master, const Tensor& weight, const Tensor& gradient,
              const SgdScalars& scalars) {
  const SgdFactors f(scalars);
  float* data = master.data<float>();
  W* out = weight.data<W>();
  const float* g = gradient.data<float>();
  const int64_t count = master.num_elements();
  for (int64_t i = 0; i < count; ++i) {
    const float updated = data[i] * f.decay - f.rate * (g[i] * f.scale);
    data[i] = updated;
    out[i] = static_cast<W>(updated);
  }
}

#define GRPO_INSTANTIATE_OPTIMIZER_STEP(W)                                     \
  template void adamw_step<W>(const AdamWState&, const Tensor&, const Tensor&, \
                              const AdamWScalars&);                            \
  template void sgd_step<W>(const Tensor&, const Tensor&, const Tensor&, const SgdScalars&);
GRPO_INSTANTIATE_OPTIMIZER_STEP(float)
GRPO_INSTANTIATE_OPTIMIZER_STEP(Bfloat16)
#undef GRPO_INSTANTIATE_OPTIMIZER_STEP

}  // namespace grpo::ops::cpu
