#include "model/ops/optimizer_step_cpu.h"

#include <cmath>

namespace grpo::ops {

// Scalars are combined in double and rounded once to float; the elements are float throughout, as
// in torch.optim.AdamW on float32 parameters.
template <typename W>
void adamw_step_cpu(const AdamWState& state, const Tensor& weight, const Tensor& gradient,
                    const AdamWScalars& scalars) {
  const auto step = static_cast<double>(scalars.step);
  const auto scale = static_cast<float>(scalars.gradient_scale);
  const auto decay = static_cast<float>(1.0 - scalars.learning_rate * scalars.weight_decay);
  const auto beta1 = static_cast<float>(scalars.beta1);
  const auto one_minus_beta1 = static_cast<float>(1.0 - scalars.beta1);
  const auto beta2 = static_cast<float>(scalars.beta2);
  const auto one_minus_beta2 = static_cast<float>(1.0 - scalars.beta2);
  const auto root_correction2 = static_cast<float>(std::sqrt(1.0 - std::pow(scalars.beta2, step)));
  const auto step_size =
      static_cast<float>(scalars.learning_rate / (1.0 - std::pow(scalars.beta1, step)));
  const auto epsilon = static_cast<float>(scalars.epsilon);
  float* master = state.master.data<float>();
  float* m = state.m.data<float>();
  float* v = state.v.data<float>();
  W* out = weight.data<W>();
  const float* g = gradient.data<float>();
  const int64_t count = state.master.num_elements();
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = g[i] * scale;
    const float new_m = std::fma(beta1, m[i], one_minus_beta1 * scaled);
    const float new_v = std::fma(beta2, v[i], one_minus_beta2 * scaled * scaled);
    const float denominator = std::sqrt(new_v) / root_correction2 + epsilon;
    const float new_master = master[i] * decay - step_size * (new_m / denominator);
    m[i] = new_m;
    v[i] = new_v;
    master[i] = new_master;
    out[i] = static_cast<W>(new_master);
  }
}

template <typename W>
void sgd_step_cpu(const Tensor& master, const Tensor& weight, const Tensor& gradient,
                  const SgdScalars& scalars) {
  const auto scale = static_cast<float>(scalars.gradient_scale);
  const auto decay = static_cast<float>(1.0 - scalars.learning_rate * scalars.weight_decay);
  const auto rate = static_cast<float>(scalars.learning_rate);
  float* data = master.data<float>();
  W* out = weight.data<W>();
  const float* g = gradient.data<float>();
  const int64_t count = master.num_elements();
  for (int64_t i = 0; i < count; ++i) {
    const float updated = data[i] * decay - rate * (g[i] * scale);
    data[i] = updated;
    out[i] = static_cast<W>(updated);
  }
}

#define GRPO_INSTANTIATE_OPTIMIZER_STEP(W)                                         \
  template void adamw_step_cpu<W>(const AdamWState&, const Tensor&, const Tensor&, \
                                  const AdamWScalars&);                            \
  template void sgd_step_cpu<W>(const Tensor&, const Tensor&, const Tensor&, const SgdScalars&);
GRPO_INSTANTIATE_OPTIMIZER_STEP(float)
GRPO_INSTANTIATE_OPTIMIZER_STEP(Bfloat16)
#undef GRPO_INSTANTIATE_OPTIMIZER_STEP

}  // namespace grpo::ops
