// Golden cases of whole models.
#pragma once

#include <filesystem>
#include <vector>

#include "tests/golden/golden_case.h"

namespace grpo::golden {

// A folder with config.json, model.safetensors and expected.safetensors: logits, log-probabilities,
// loss, every gradient and the greedy continuations.
std::vector<CaseResult> run_qwen2_cases(const std::filesystem::path& folder);

}  // namespace grpo::golden
