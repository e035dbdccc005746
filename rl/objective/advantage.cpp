#include "rl/objective/advantage.h"

#include <map>

#include "model/core/errors.h"
#include "rl/objective/moments.h"

namespace grpo::rl {

namespace {

constexpr double kStdEpsilon = 1e-6;  // NeMo-RL's

// Members of each group in the order of the samples.
std::map<int64_t, std::vector<size_t>> members_by_group(std::span<const int64_t> groups) {
  std::map<int64_t, std::vector<size_t>> members;
  for (size_t i = 0; i < groups.size(); ++i) members[groups[i]].push_back(i);
  return members;
}

// Rewards of the members that make the baseline of `sample`.
std::vector<double> baseline_rewards(const std::vector<size_t>& members,
                                     std::span<const double> rewards, size_t sample,
                                     bool leave_one_out) {
  std::vector<double> chosen;
  for (const size_t member : members)
    if (!leave_one_out || member != sample) chosen.push_back(rewards[member]);
  return chosen;
}

}  // namespace

GroupAdvantages group_advantages(std::span<const int64_t> groups, std::span<const double> rewards,
                                 bool leave_one_out, bool normalize) {
  CHECK(groups.size() == rewards.size(), "{} group ids for {} rewards", groups.size(),
        rewards.size());
  const size_t count = rewards.size();
  GroupAdvantages result{.baseline = std::vector<double>(count),
                         .std = std::vector<double>(count),
                         .advantage = std::vector<double>(count)};
  for (const auto& [group, members] : members_by_group(groups)) {
    for (const size_t sample : members) {
      const bool is_alone = members.size() == 1;
      const Moments moments =
          moments_of(baseline_rewards(members, rewards, sample, leave_one_out && !is_alone));
      const double std = moments.unbiased_std();
      double advantage = rewards[sample] - moments.mean;
      if (normalize && std > 0) advantage /= std + kStdEpsilon;
      result.baseline[sample] = moments.mean;
      result.std[sample] = std;
      result.advantage[sample] = advantage;
    }
  }
  return result;
}

}  // namespace grpo::rl
