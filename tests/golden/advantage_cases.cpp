#include "tests/golden/advantage_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "rl/objective/advantage.h"
#include "rl/objective/gdpo.h"
#include "rl/objective/reinforce_plus_plus.h"
#include "rl/objective/reward_shaping.h"

namespace grpo::golden {

namespace {

constexpr double kTolerance = 1e-12;
// The source computes n / (n - 1) in float32, which reaches a leave-one-out std and what is divided
// by it.
constexpr double kLeaveOneOutTolerance = 1e-7;

using Numbers = std::vector<double>;

std::optional<std::string> unknown_key(const nlohmann::json& config,
                                       std::initializer_list<const char*> known) {
  for (const auto& [key, value] : config.items())
    if (std::find(known.begin(), known.end(), key) == known.end()) return "config key " + key;
  return std::nullopt;
}

// Assigns the value under `key`; an absent or null key leaves `value` alone.
template <typename T>
void read(const nlohmann::json& config, const char* key, T& value) {
  if (config.contains(key) && !config.at(key).is_null()) value = config.at(key).get<T>();
}

void read_optional(const nlohmann::json& config, const char* key, std::optional<double>& value) {
  if (config.contains(key))
    value = config.at(key).is_null() ? std::nullopt : std::optional(config.at(key).get<double>());
}

CaseResult run_gdpo(const nlohmann::json& golden_case, const std::string& name) {
  const std::string kind = "gdpo";
  const nlohmann::json& config = golden_case.at("config");
  if (const auto unknown = unknown_key(
          config, {"normalize_rewards", "use_leave_one_out_baseline", "reward_weights"}))
    return unsupported(kind, name, *unknown);
  rl::GdpoOptions options;
  read(config, "normalize_rewards", options.normalize_rewards);
  read(config, "use_leave_one_out_baseline", options.use_leave_one_out_baseline);
  read(config, "reward_weights", options.reward_weights);
  const Numbers actual =
      rl::gdpo_advantages(options, golden_case.at("group").get<std::vector<int64_t>>(),
                          golden_case.at("components").get<std::map<std::string, Numbers>>());
  const bool divides_by_leave_one_out =
      options.use_leave_one_out_baseline && options.normalize_rewards;
  Comparison comparison;
  comparison.numbers("advantage", actual, golden_case.at("advantage").get<Numbers>(),
                     divides_by_leave_one_out ? kLeaveOneOutTolerance : kTolerance);
  return comparison.result(kind, name);
}

CaseResult run_reinforce_plus_plus(const nlohmann::json& golden_case, const std::string& name) {
  const std::string kind = "reinforce_plus_plus";
  const nlohmann::json& config = golden_case.at("config");
  if (const auto unknown = unknown_key(config, {"minus_baseline", "use_kl_in_reward", "kl_coef",
                                                "kl_type", "kl_input_clamp", "kl_output_clamp"}))
    return unsupported(kind, name, *unknown);
  rl::ReinforcePlusPlusOptions options;
  read(config, "minus_baseline", options.minus_baseline);
  read(config, "use_kl_in_reward", options.use_kl_in_reward);
  read(config, "kl_coef", options.kl_coef);
  read(config, "kl_type", options.kl_type);
  read_optional(config, "kl_input_clamp", options.kl_input_clamp);
  read_optional(config, "kl_output_clamp", options.kl_output_clamp);
  const auto groups = golden_case.at("group").get<std::vector<int64_t>>();
  const auto rewards = golden_case.at("rewards").get<Numbers>();
  const auto mask = golden_case.at("mask").get<rl::TokenRows>();
  rl::TokenRows policy, reference;
  read(golden_case, "logprobs_policy", policy);
  read(golden_case, "logprobs_reference", reference);
  const rl::TokenRows actual =
      rl::reinforce_plus_plus_advantages(options, {groups, rewards, mask, policy, reference});
  const auto expected = golden_case.at("advantage").get<rl::TokenRows>();
  Comparison comparison;
  if (expected.size() != actual.size())
    comparison.fail("advantage has another number of sequences");
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i)
    comparison.numbers(fmt::format("advantage[{}]", i), actual[i], expected[i], kTolerance);
  return comparison.result(kind, name);
}

}  // namespace

CaseResult run_group_advantage_case(const nlohmann::json& golden_case, const std::string& name) {
  const auto groups = golden_case.at("group").get<std::vector<int64_t>>();
  const auto rewards = golden_case.at("rewards").get<Numbers>();
  const bool leave_one_out = golden_case.at("leave_one_out").get<bool>();
  const double std_tolerance = leave_one_out ? kLeaveOneOutTolerance : kTolerance;
  const rl::GroupAdvantages plain = rl::group_advantages(groups, rewards, leave_one_out, false);
  const rl::GroupAdvantages normalized = rl::group_advantages(groups, rewards, leave_one_out, true);
  const auto expected = [&](const char* key) { return golden_case.at(key).get<Numbers>(); };
  Comparison comparison;
  comparison.numbers("baseline", plain.baseline, expected("baseline"), kTolerance);
  comparison.numbers("std", plain.std, expected("std"), std_tolerance);
  comparison.numbers("advantage", plain.advantage, expected("advantage"), kTolerance);
  comparison.numbers("advantage_normalized", normalized.advantage, expected("advantage_normalized"),
                     std_tolerance);
  return comparison.result("group_advantages", name);
}

CaseResult run_estimator_case(const nlohmann::json& golden_case, const std::string& name) {
  const auto estimator = golden_case.at("estimator").get<std::string>();
  if (estimator == "gdpo") return run_gdpo(golden_case, name);
  if (estimator == "reinforce_plus_plus") return run_reinforce_plus_plus(golden_case, name);
  return unsupported("advantage_estimator", name, "estimator " + estimator);
}

CaseResult run_reward_shaping_case(const nlohmann::json& golden_case, const std::string& name) {
  const std::string kind = "reward_shaping";
  const nlohmann::json& config = golden_case.at("config");
  if (const auto unknown =
          unknown_key(config, {"enabled", "overlong_buffer_length", "overlong_buffer_penalty",
                               "max_response_length", "stop_properly_penalty_coef"}))
    return unsupported(kind, name, *unknown);
  bool enabled = true;
  read(config, "enabled", enabled);
  std::optional<double> coefficient;
  read_optional(config, "stop_properly_penalty_coef", coefficient);
  auto shaped = golden_case.at("rewards").get<Numbers>();
  if (enabled && config.contains("overlong_buffer_length") &&
      !config.at("overlong_buffer_length").is_null()) {
    const rl::OverlongPenalty overlong{
        .buffer_length = config.at("overlong_buffer_length").get<int64_t>(),
        .penalty = config.at("overlong_buffer_penalty").get<double>(),
        .max_response_length = config.at("max_response_length").get<int64_t>()};
    shaped = rl::penalize_overlong(
        overlong, golden_case.at("response_lengths").get<std::vector<int64_t>>(), shaped);
  }
  if (enabled && coefficient)
    shaped = rl::scale_truncated(*coefficient, golden_case.at("truncated").get<std::vector<bool>>(),
                                 shaped);
  Comparison comparison;
  comparison.numbers("shaped", shaped, golden_case.at("shaped").get<Numbers>(), kTolerance);
  return comparison.result(kind, name);
}

}  // namespace grpo::golden
