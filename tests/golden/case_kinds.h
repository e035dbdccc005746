// Which kind a golden case is, told by its keys, and how it runs.
#pragma once

#include "tests/golden/golden_case.h"

namespace grpo::golden {

// Text, chat-template and other cases that need a tokenizer's folder; run by run_tokenizer_cases.
bool is_tokenizer_case(const nlohmann::json& golden_case);

// Runs any other case. Unknown kinds are unsupported; a malformed case fails with the reason.
CaseResult run_json_case(const nlohmann::json& golden_case, const std::string& name);

}  // namespace grpo::golden
