#include "rl/data/reward.h"

#include <re2/re2.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "model/core/config_check.h"
#include "model/core/config_range.h"
#include "rl/data/decimal_number.h"

namespace grpo::rl {

namespace {

re2::StringPiece to_piece(std::string_view text) { return {text.data(), text.size()}; }

// What is wrong with a pattern and where, "" when it compiles and has the groups that its use
// needs.
std::string pattern_problem(const RE2& pattern, bool needs_group) {
  if (!pattern.ok()) {
    const size_t offset = pattern.pattern().find(pattern.error_arg());
    return fmt::format("\"{}\" is no regular expression (RE2 syntax): {} at offset {}",
                       pattern.pattern(), pattern.error(),
                       offset == std::string::npos ? 0 : offset);
  }
  if (needs_group && pattern.NumberOfCapturingGroups() < 1)
    return fmt::format("\"{}\" needs a group (...) around the answer", pattern.pattern());
  return "";
}

RE2::Options quiet_options() {
  RE2::Options options;
  options.set_log_errors(false);  // errors are reported by exception
  return options;
}

std::string_view trim_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

bool answers_agree(std::string_view given, std::string_view expected) {
  if (given == expected) return true;
  const std::optional<std::string> number = canonical_decimal(given);
  return number && number == canonical_decimal(expected);
}

// Group 1 of the last match that has one.
std::optional<std::string_view> last_answer(const RE2& pattern, std::string_view text) {
  std::optional<std::string_view> answer;
  size_t start = 0;
  re2::StringPiece groups[2];
  while (start <= text.size() &&
         pattern.Match(to_piece(text), start, text.size(), RE2::UNANCHORED, groups, 2)) {
    if (groups[1].data() != nullptr) answer = std::string_view(groups[1].data(), groups[1].size());
    const size_t end = static_cast<size_t>(groups[0].data() - text.data()) + groups[0].size();
    start = groups[0].empty() ? end + 1 : end;
  }
  return answer;
}

class ExactMatch : public RewardFunction {
 public:
  explicit ExactMatch(const RewardConfig& config)
      : pattern_(config.pattern, quiet_options()), score_(config.score) {}

  double score(const RewardInput& input) const override {
    const std::string_view expected = trim_blanks(input.answer);
    if (expected.empty()) return 0.0;
    const std::optional<std::string_view> given =
        pattern_.pattern().empty() ? input.completion : last_answer(pattern_, input.completion);
    return given && answers_agree(trim_blanks(*given), expected) ? score_ : 0.0;
  }

 private:
  RE2 pattern_;
  double score_;
};

class PatternMatch : public RewardFunction {
 public:
  explicit PatternMatch(const RewardConfig& config)
      : pattern_(config.pattern, quiet_options()), score_(config.score) {}

  double score(const RewardInput& input) const override {
    return RE2::PartialMatch(to_piece(input.completion), pattern_) ? score_ : 0.0;
  }

 private:
  RE2 pattern_;
  double score_;
};

std::string config_pattern_problem(const RewardConfig& config) {
  if (config.pattern.empty())
    return config.type == "pattern" ? "type: pattern needs a regular expression" : "";
  return pattern_problem(RE2(config.pattern, quiet_options()), config.type == "exact_match");
}

bool is_metric_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

}  // namespace

void RewardConfig::visit(ConfigVisitor& visitor) {
  visitor.field("name", name, "shown in train/rewards/<name>/mean and std");
  visitor.choice(
      "type", type, {"exact_match", "pattern"},
      "exact_match: the extracted answer equals the expected one; pattern: the text matches");
  visitor.field("weight", weight, "factor in the sample's reward");
  visitor.field(
      "pattern", pattern,
      "regular expression (RE2); exact_match takes group 1 of its last match, \"\" the whole text");
  visitor.field("score", score, "score of a success; a failure scores 0");
}

void RewardConfig::validate(const ConfigVisitor& visitor) const {
  check_config(is_metric_name(name), visitor, "name",
               fmt::format("\"{}\" is not a word of letters, digits, '_', '-' and '.'", name));
  constexpr double kLargest = 1e6;  // rewards are squared and summed in float32
  require_range(visitor, "weight", weight, -kLargest, kLargest);
  require_range(visitor, "score", score, -kLargest, kLargest);
  const std::string problem = config_pattern_problem(*this);
  check_config(problem.empty(), visitor, "pattern", problem);
}

std::unique_ptr<RewardFunction> make_reward_function(const RewardConfig& config) {
  const std::string problem = config_pattern_problem(config);
  if (!problem.empty())
    throw ConfigError(fmt::format("pattern of reward \"{}\": {}", config.name, problem));
  if (config.type == "pattern") return std::make_unique<PatternMatch>(config);
  CHECK(config.type == "exact_match", "reward type \"{}\"", config.type);
  return std::make_unique<ExactMatch>(config);
}

RewardSet::RewardSet(const std::vector<RewardConfig>& configs) {
  for (const RewardConfig& config : configs) {
    if (std::find(names_.begin(), names_.end(), config.name) != names_.end())
      throw ConfigError(fmt::format("two reward functions are named \"{}\"; give each its own name",
                                    config.name));
    names_.push_back(config.name);
    weights_.push_back(config.weight);
    functions_.push_back(make_reward_function(config));
  }
}

RewardResult RewardSet::score(const RewardInput& input) const {
  RewardResult result{.total = 0, .components = {}};
  for (size_t i = 0; i < functions_.size(); ++i) {
    result.components.push_back(functions_[i]->score(input));
    result.total += weights_[i] * result.components.back();
  }
  return result;
}

}  // namespace grpo::rl
