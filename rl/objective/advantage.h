// Group-relative advantages. Definitions are NeMo-RL's (README, "Advantages").
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace grpo::rl {

struct GroupAdvantages {
  std::vector<double> baseline;  // of each sample
  std::vector<double>
      std;  // unbiased, over the set that makes the baseline; 0 for fewer than two members
  std::vector<double> advantage;  // normalised when asked
};

// Samples of a prompt share a group id; any order. Baseline: mean reward of the group, or of its
// other members (leave_one_out). Normalised: divided by (std + 1e-6) where std > 0. A group of one
// has advantage 0. Equal rewards have exactly that baseline, std 0 and advantage 0. Deterministic;
// groups and rewards have one length, else InternalError.
GroupAdvantages group_advantages(std::span<const int64_t> groups, std::span<const double> rewards,
                                 bool leave_one_out, bool normalize);

}  // namespace grpo::rl
