// Golden cases of group advantages, advantage estimators and reward shaping. All throw nlohmann's
// exceptions for a malformed case.
#pragma once

#include "tests/golden/golden_case.h"

namespace grpo::golden {

// {"group", "rewards", "leave_one_out", "baseline", "std", "advantage", "advantage_normalized"}
CaseResult run_group_advantage_case(const nlohmann::json& golden_case, const std::string& name);

// {"estimator": "gdpo" | "reinforce_plus_plus", "config", "group", ..., "advantage"}
CaseResult run_estimator_case(const nlohmann::json& golden_case, const std::string& name);

// {"config", "response_lengths", "truncated", "rewards", "shaped"}
CaseResult run_reward_shaping_case(const nlohmann::json& golden_case, const std::string& name);

}  // namespace grpo::golden
