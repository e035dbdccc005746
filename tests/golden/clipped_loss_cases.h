// Golden cases of the clipped policy-gradient loss.
#pragma once

#include "tests/golden/golden_case.h"

namespace grpo::golden {

// {"name", "config", "valid_sequences", "valid_tokens", "inputs", "loss", "grad_current_logprobs"
// (, "grad_current_logprobs_unfiltered"), "metrics"}. A config key or metric that the loss does not
// know is unsupported. Throws nlohmann's exceptions for a malformed case.
CaseResult run_clipped_loss_case(const nlohmann::json& golden_case, const std::string& name);

}  // namespace grpo::golden
