// Golden cases of operators that have their own files: the AdamW update with clipping, and the
// sampling filters. Both throw nlohmann's exceptions for a malformed case.
#pragma once

#include "tests/golden/golden_case.h"

namespace grpo::golden {

// {"lr", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm", "initial", "steps": [{"grads",
// "grad_norm", "params"}]}; initial, grads and params are lists of nested arrays, a tensor each.
CaseResult run_adamw_case(const nlohmann::json& golden_case, const std::string& name);

// {"temperature", "top_k", "top_p", "logits", "kept", "processed_logprobs", "raw_logprobs"}
CaseResult run_sampling_case(const nlohmann::json& golden_case, const std::string& name);

}  // namespace grpo::golden
