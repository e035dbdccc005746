// Rewards: each function scores a completion; the sample's reward is their weighted sum.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/config_visitor.h"

namespace grpo::rl {

struct RewardConfig {
  std::string name = "answer";       // metric train/rewards/<name>
  std::string type = "exact_match";  // exact_match: extracted answer equals the expected one;
                                     // pattern: the text matches
  double weight = 1.0;
  std::string
      pattern;  // RE2 syntax; exact_match: its group 1 is the answer ("" takes the whole text)
  double score = 1.0;  // given on success; 0 otherwise

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

struct RewardInput {
  std::string_view prompt;
  std::string_view completion;  // decoded without special tokens
  std::string_view answer;      // expected, from the dataset; empty when it has none
};

// Immutable, thread-safe. Time is linear in the text for each match (RE2: no backtracking).
// exact_match: the answer is group 1 of the pattern's last match that has one. It succeeds when,
// blanks trimmed, it equals the expected text, or both are decimal numbers of equal value ("7",
// "7.0", "007"); never when no answer is expected. pattern: succeeds when the pattern matches
// anywhere in the completion.
class RewardFunction {
 public:
  virtual ~RewardFunction() = default;
  virtual double score(const RewardInput& input) const = 0;
};

// Throws ConfigError for a pattern that does not compile (offset and reason).
std::unique_ptr<RewardFunction> make_reward_function(const RewardConfig& config);

struct RewardResult {
  double total;                    // sum of weight * component
  std::vector<double> components;  // unweighted, in the config's order
};

// Immutable, thread-safe. Throws ConfigError for two functions of one name.
class RewardSet {
 public:
  explicit RewardSet(const std::vector<RewardConfig>& configs);
  RewardResult score(const RewardInput& input) const;
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
  std::vector<double> weights_;
  std::vector<std::unique_ptr<RewardFunction>> functions_;
};

}  // namespace grpo::rl
