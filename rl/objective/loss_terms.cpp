#include "rl/objective/loss_terms.h"

#include <algorithm>
#include <cmath>

#include "model/core/errors.h"

namespace grpo::rl {

KlEstimator kl_estimator(const std::string& name) {
  if (name == "k1") return KlEstimator::kK1;
  if (name == "k2") return KlEstimator::kK2;
  CHECK(name == "k3", "KL estimator \"{}\"", name);
  return KlEstimator::kK3;
}

Differentiated kl_from_log_ratio(KlEstimator estimator, double q) {
  switch (estimator) {
    case KlEstimator::kK1:
      return {-q, 1.0};
    case KlEstimator::kK2:
      return {0.5 * q * q, -q};
    case KlEstimator::kK3:
      return {std::expm1(q) - q, -std::expm1(q)};
  }
  return {0.0, 0.0};
}

double js_divergence(double p, double g) {
  const auto h = [](double x) { return std::expm1(x) - x; };
  // log(M) relative to the larger of the two: no overflow, and exactly 0 where they are equal.
  const double difference = std::min(p, g) - std::max(p, g);
  const double mean_log = p == g ? 0.0 : std::log1p(0.5 * std::expm1(difference));
  return p == g ? 0.0 : 0.5 * h(-mean_log) + 0.5 * h(difference - mean_log);
}

Differentiated clipped_surrogate(const LossConfig& config, double advantage, double ratio) {
  const double clipped =
      std::clamp(ratio, 1.0 - config.ratio_clip_min, 1.0 + config.ratio_clip_max);
  const double plain_loss = -advantage * ratio;
  const double clipped_loss = -advantage * clipped;
  // Where the clipped branch is strictly larger the clip acts, so that nothing flows through it
  // either.
  Differentiated term = clipped_loss > plain_loss ? Differentiated{clipped_loss, 0.0}
                                                  : Differentiated{plain_loss, -advantage};
  if (config.ratio_clip_c && advantage < 0) {
    const double bound = -advantage * *config.ratio_clip_c;
    if (term.value > bound) term = {bound, 0.0};
  }
  return term;
}

Differentiated kl_penalty_term(const LossConfig& config, double current_unfiltered,
                               double generation, double reference) {
  const double log_ratio = reference - current_unfiltered;
  double q = log_ratio;
  if (config.kl_input_clamp_value)
    q = std::clamp(q, -*config.kl_input_clamp_value, *config.kl_input_clamp_value);
  const bool input_clamped = q != log_ratio;

  double weight = 1.0;
  if (config.use_on_policy_kl_approximation) {
    weight = std::exp(current_unfiltered - generation);
    if (!std::isfinite(weight)) weight = 0.0;
  }
  const Differentiated k = kl_from_log_ratio(kl_estimator(config.reference_policy_kl_type), q);
  const double value = weight * k.value;
  if (config.kl_output_clamp_value && std::abs(value) > *config.kl_output_clamp_value)
    return {std::copysign(*config.kl_output_clamp_value, value), 0.0};
  // d(v k) = v (k + k'), since v is an exponential in c_u; where the input clamp acts both factors
  // are constants.
  return {value, input_clamped ? 0.0 : weight * (k.value + k.derivative)};
}

bool is_importance_ratio_in_bounds(const LossConfig& config, double ratio) {
  const auto& upper = config.truncated_importance_sampling_ratio;
  return ratio >= config.truncated_importance_sampling_ratio_min.value_or(0.0) &&
         (!upper || ratio <= *upper);
}

ImportanceWeight truncate_importance_weight(const LossConfig& config, double weight) {
  const auto& type = config.truncated_importance_sampling_type;
  if (type != "tis" && type != "icepop") return {weight, false};
  if (is_importance_ratio_in_bounds(config, weight)) return {weight, false};
  if (type == "icepop") return {0.0, true};
  const double lower = config.truncated_importance_sampling_ratio_min.value_or(0.0);
  return {weight < lower ? lower : *config.truncated_importance_sampling_ratio, true};
}

}  // namespace grpo::rl
