// Golden cases of tokenizers and chat templates.
#pragma once

#include <filesystem>
#include <vector>

#include "tests/golden/golden_case.h"

namespace grpo::golden {

// Every case of the JSON files in `folder` that is_tokenizer_case() recognises. The tokenizer's
// files are taken from `folder`, else from `fallback_folder`, else the cases are reported as not
// run.
std::vector<CaseResult> run_tokenizer_cases(const std::filesystem::path& folder,
                                            const std::filesystem::path& fallback_folder);

}  // namespace grpo::golden
