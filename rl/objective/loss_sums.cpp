#include <algorithm>
#include <limits>

#include "rl/objective/loss.h"

namespace grpo::rl {

LossSums::LossSums()
    : probs_ratio_min(std::numeric_limits<double>::infinity()),
      probs_ratio_max(-std::numeric_limits<double>::infinity()),
      probs_ratio_clamped_min(std::numeric_limits<double>::infinity()),
      probs_ratio_clamped_max(-std::numeric_limits<double>::infinity()) {}

void LossSums::add(const LossSums& other) {
  loss += other.loss;
  kl_penalty += other.kl_penalty;
  positive_nll_loss += other.positive_nll_loss;
  probs_ratio += other.probs_ratio;
  probs_ratio_clamped += other.probs_ratio_clamped;
  token_mult_prob_error += other.token_mult_prob_error;
  gen_kl_error += other.gen_kl_error;
  policy_kl_error += other.policy_kl_error;
  js_divergence_error += other.js_divergence_error;
  sampling_importance_ratio += other.sampling_importance_ratio;
  is_oob_ratio += other.is_oob_ratio;
  approx_entropy += other.approx_entropy;
  num_valid_samples += other.num_valid_samples;
  clip_ratio_low += other.clip_ratio_low;
  clip_ratio_high += other.clip_ratio_high;
  probs_ratio_min = std::min(probs_ratio_min, other.probs_ratio_min);
  probs_ratio_max = std::max(probs_ratio_max, other.probs_ratio_max);
  probs_ratio_clamped_min = std::min(probs_ratio_clamped_min, other.probs_ratio_clamped_min);
  probs_ratio_clamped_max = std::max(probs_ratio_clamped_max, other.probs_ratio_clamped_max);
}

LossSums average_loss(const LossConfig& config, const LossSums& total, const LossCounts& counts) {
  const auto over = [&](double sum, double count) {
    const double denominator = count + counts.denominator_epsilon;
    return denominator > 0 ? sum / denominator : 0.0;
  };
  const auto over_tokens = [&](double sum) { return over(sum, counts.valid_tokens); };
  const auto over_sequences = [&](double sum) { return over(sum, counts.valid_sequences); };
  const double loss_count = config.token_level_loss ? counts.valid_tokens : counts.valid_sequences;

  LossSums average = total;
  average.positive_nll_loss = over(total.positive_nll_loss, counts.positive_tokens);
  average.loss =
      over(total.loss, loss_count) + config.positive_example_nll_weight * average.positive_nll_loss;
  average.kl_penalty = over(total.kl_penalty, loss_count);
  average.probs_ratio = over_tokens(total.probs_ratio);
  average.probs_ratio_clamped = over_tokens(total.probs_ratio_clamped);
  average.token_mult_prob_error = over_tokens(total.token_mult_prob_error);
  average.gen_kl_error = over_tokens(total.gen_kl_error);
  average.policy_kl_error = over_tokens(total.policy_kl_error);
  average.js_divergence_error = over_tokens(total.js_divergence_error);
  average.sampling_importance_ratio = config.sequence_level_importance_ratios
                                          ? over_sequences(total.sampling_importance_ratio)
                                          : over_tokens(total.sampling_importance_ratio);
  average.is_oob_ratio = config.truncated_importance_sampling_type == "seq-mask-tis"
                             ? over_sequences(total.is_oob_ratio)
                             : over_tokens(total.is_oob_ratio);
  average.approx_entropy = over_tokens(total.approx_entropy);
  average.clip_ratio_low = over_tokens(total.clip_ratio_low);
  average.clip_ratio_high = over_tokens(total.clip_ratio_high);
  return average;
}

}  // namespace grpo::rl
