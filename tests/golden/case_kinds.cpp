#include "tests/golden/case_kinds.h"

#include <initializer_list>
#include <nlohmann/json.hpp>

#include "tests/golden/advantage_cases.h"
#include "tests/golden/clipped_loss_cases.h"
#include "tests/golden/operator_cases.h"

namespace grpo::golden {

namespace {

struct Kind {
  const char* name;
  std::initializer_list<const char*> keys;  // a case of the kind has them all
  CaseResult (*run)(const nlohmann::json&, const std::string&);
};

// The first match counts; no key list is part of a later one's.
const Kind kKinds[] = {
    {"clipped_pg_loss", {"config", "inputs", "grad_current_logprobs"}, run_clipped_loss_case},
    {"advantage_estimator", {"estimator", "advantage"}, run_estimator_case},
    {"group_advantages", {"group", "rewards", "leave_one_out"}, run_group_advantage_case},
    {"reward_shaping", {"rewards", "shaped"}, run_reward_shaping_case},
    {"adamw", {"lr", "initial", "steps"}, run_adamw_case},
    {"sampling_filter", {"logits", "kept"}, run_sampling_case},
};

bool has_keys(const nlohmann::json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (!object.contains(key)) return false;
  return true;
}

std::string key_list(const nlohmann::json& object) {
  std::string list;
  for (const auto& [key, value] : object.items()) list += (list.empty() ? "" : ", ") + key;
  return list;
}

}  // namespace

bool is_tokenizer_case(const nlohmann::json& golden_case) {
  return golden_case.is_object() &&
         (has_keys(golden_case, {"text", "ids"}) || golden_case.contains("messages"));
}

CaseResult run_json_case(const nlohmann::json& golden_case, const std::string& name) {
  if (!golden_case.is_object())
    return {"json", name, CaseResult::Status::kFail, "a case must be a JSON object"};
  for (const Kind& kind : kKinds) {
    if (!has_keys(golden_case, kind.keys)) continue;
    try {
      return kind.run(golden_case, name);
    } catch (const std::exception& error) {
      return {kind.name, name, CaseResult::Status::kFail, error.what()};
    }
  }
  return unsupported("json", name, "a case with keys " + key_list(golden_case));
}

}  // namespace grpo::golden
