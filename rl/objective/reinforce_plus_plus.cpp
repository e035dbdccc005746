#include "rl/objective/reinforce_plus_plus.h"

#include <algorithm>
#include <cmath>

#include "model/core/errors.h"
#include "rl/objective/advantage.h"
#include "rl/objective/loss_terms.h"
#include "rl/objective/moments.h"

namespace grpo::rl {

namespace {

constexpr double kSmallestVariance = 1e-8;  // NeMo-RL's

double clamp_to(double value, const std::optional<double>& bound) {
  return bound ? std::clamp(value, -*bound, *bound) : value;
}

double kl_penalty(const ReinforcePlusPlusOptions& options, KlEstimator estimator, double policy,
                  double reference) {
  const double q = clamp_to(reference - policy, options.kl_input_clamp);
  return clamp_to(kl_from_log_ratio(estimator, q).value, options.kl_output_clamp);
}

void check_batch(const ReinforcePlusPlusOptions& options, const ReinforcePlusPlusBatch& batch) {
  const size_t count = batch.rewards.size();
  CHECK(batch.groups.size() == count && batch.mask.size() == count);
  if (!options.use_kl_in_reward) return;
  CHECK(batch.policy_logprobs.size() == count && batch.reference_logprobs.size() == count);
  for (size_t i = 0; i < count; ++i)
    CHECK(batch.policy_logprobs[i].size() == batch.mask[i].size() &&
              batch.reference_logprobs[i].size() == batch.mask[i].size(),
          "sequence {}", i);
}

}  // namespace

TokenRows reinforce_plus_plus_advantages(const ReinforcePlusPlusOptions& options,
                                         const ReinforcePlusPlusBatch& batch) {
  check_batch(options, batch);
  const KlEstimator estimator = kl_estimator(options.kl_type);
  std::vector<double> sample_advantages(batch.rewards.begin(), batch.rewards.end());
  if (options.minus_baseline)
    sample_advantages = group_advantages(batch.groups, batch.rewards, false, false).advantage;

  TokenRows advantages(batch.mask.size());
  std::vector<double> valid;
  for (size_t i = 0; i < batch.mask.size(); ++i) {
    advantages[i].assign(batch.mask[i].size(), sample_advantages[i]);
    for (size_t t = 0; t < batch.mask[i].size(); ++t) {
      double& advantage = advantages[i][t];
      if (options.use_kl_in_reward)
        advantage -= options.kl_coef * kl_penalty(options, estimator, batch.policy_logprobs[i][t],
                                                  batch.reference_logprobs[i][t]);
      if (batch.mask[i][t] != 0.0) valid.push_back(advantage);
    }
  }
  const Moments moments = moments_of(valid);
  const double scale = std::sqrt(std::max(moments.population_variance(), kSmallestVariance));
  for (std::vector<double>& row : advantages)
    for (double& advantage : row) advantage = (advantage - moments.mean) / scale;
  return advantages;
}

}  // namespace grpo::rl
