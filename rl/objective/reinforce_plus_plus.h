// REINFORCE++: token advantages from a reward, an optional KL penalty a token, normalised over the
// batch's tokens (README, "Advantages").
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace grpo::rl {

struct ReinforcePlusPlusOptions {
  bool minus_baseline = true;     // subtract the group's mean reward
  bool use_kl_in_reward = false;  // subtract kl_coef * KL(policy || reference) from each token
  double kl_coef = 0.0;
  std::string kl_type = "k3";  // k1, k2, k3
  std::optional<double> kl_input_clamp = 20.0;
  std::optional<double> kl_output_clamp = 10.0;
};

using TokenRows = std::vector<std::vector<double>>;  // [sequence][token]; rows may differ in length

struct ReinforcePlusPlusBatch {
  std::span<const int64_t> groups;   // of each sequence
  std::span<const double> rewards;   // of each sequence
  const TokenRows& mask;             // 1 for valid tokens
  const TokenRows& policy_logprobs;  // read with use_kl_in_reward only
  const TokenRows& reference_logprobs;
};

// (A - mean) / sqrt(max(variance, 1e-8)) with mean and population variance over the batch's valid
// tokens. Tokens outside the mask get the same formula, hence NaN where their log-probabilities
// are; the loss does not read them. Rows of unequal length are an InternalError. Deterministic.
TokenRows reinforce_plus_plus_advantages(const ReinforcePlusPlusOptions& options,
                                         const ReinforcePlusPlusBatch& batch);

}  // namespace grpo::rl
