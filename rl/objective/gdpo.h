// GDPO: group advantages of each reward component, summed, then normalised over the batch (README,
// "Advantages").
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace grpo::rl {

struct GdpoOptions {
  bool normalize_rewards = true;  // each component's advantage by its group's std
  bool use_leave_one_out_baseline = false;
  std::vector<double> reward_weights;  // in alphabetical order of component names; empty: all 1
};

// `components` maps a name to a reward a sample; all have groups.size() values and weights are as
// many as components, else InternalError. Advantage of each sample: weighted sum in alphabetical
// order, minus its mean over the batch, over the batch's unbiased std where that is above 0.
// Deterministic.
std::vector<double> gdpo_advantages(const GdpoOptions& options, std::span<const int64_t> groups,
                                    const std::map<std::string, std::vector<double>>& components);

}  // namespace grpo::rl
