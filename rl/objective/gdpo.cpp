#include "rl/objective/gdpo.h"

#include "model/core/errors.h"
#include "rl/objective/advantage.h"
#include "rl/objective/moments.h"

namespace grpo::rl {

std::vector<double> gdpo_advantages(const GdpoOptions& options, std::span<const int64_t> groups,
                                    const std::map<std::string, std::vector<double>>& components) {
  const std::vector<double>& weights = options.reward_weights;
  CHECK(weights.empty() || weights.size() == components.size(),
        "{} weights for {} reward components", weights.size(), components.size());
  std::vector<double> total(groups.size(), 0.0);
  size_t component = 0;
  for (const auto& [name, rewards] : components) {
    const double weight = weights.empty() ? 1.0 : weights[component++];
    const GroupAdvantages single = group_advantages(
        groups, rewards, options.use_leave_one_out_baseline, options.normalize_rewards);
    for (size_t i = 0; i < total.size(); ++i) total[i] += weight * single.advantage[i];
  }
  const Moments moments = moments_of(total);
  const double std = moments.unbiased_std();
  for (double& advantage : total) {
    advantage -= moments.mean;
    if (std > 0) advantage /= std;
  }
  return total;
}

}  // namespace grpo::rl
