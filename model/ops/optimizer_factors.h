// The scalars of optimizer updates as the devices apply them: combined in double, rounded once to
// float. The elements are float throughout, as in torch.optim.AdamW on float32 parameters.
#pragma once

#include <cmath>

#include "model/ops/optimizer_step.h"

namespace grpo::ops {

struct AdamWFactors {
  explicit AdamWFactors(const AdamWScalars& scalars)
      : scale(static_cast<float>(scalars.gradient_scale)),
        decay(static_cast<float>(1.0 - scalars.learning_rate * scalars.weight_decay)),
        beta1(static_cast<float>(scalars.beta1)),
        one_minus_beta1(static_cast<float>(1.0 - scalars.beta1)),
        beta2(static_cast<float>(scalars.beta2)),
        one_minus_beta2(static_cast<float>(1.0 - scalars.beta2)),
        root_correction2(static_cast<float>(
            std::sqrt(1.0 - std::pow(scalars.beta2, static_cast<double>(scalars.step))))),
        step_size(
            static_cast<float>(scalars.learning_rate /
                               (1.0 - std::pow(scalars.beta1, static_cast<double>(scalars.step))))),
        epsilon(static_cast<float>(scalars.epsilon)) {}

  float scale;
  float decay;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float root_correction2;
  float step_size;
  float epsilon;
};

struct SgdFactors {
  explicit SgdFactors(const SgdScalars& scalars)
      : scale(static_cast<float>(scalars.gradient_scale)),
        decay(static_cast<float>(1.0 - scalars.learning_rate * scalars.weight_decay)),
        rate(static_cast<float>(scalars.learning_rate)) {}

  float scale;
  float decay;
  float rate;
};

}  // namespace grpo::ops
