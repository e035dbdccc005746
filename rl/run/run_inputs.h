// The files that a run's config names, opened and checked as the ranks will do it.
#pragma once

#include <cstdint>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "rl/config/run_config.h"
#include "rl/data/prompt_dataset.h"

namespace grpo::rl {

struct RunData {
  PromptDataset train;
  std::vector<PromptDataset> validation;  // data.validation's, in its order
};

// With the limit that the sequence length leaves to prompts. Throws DataError.
RunData load_data(const RunConfig& config, const model::Tokenizer& tokenizer);

// Throws ConfigError when supervised steps, of a warm start or of sft, have no end token to learn,
// DataError for an example that is too long with its response. Nothing without such steps.
void check_supervised_data(const RunConfig& config, const RunData& data,
                           const std::vector<int32_t>& stops);

// Opens tokenizer, data and model of a resolved config and throws what a run would: ConfigError or
// DataError. Values of weights are not read.
void check_run_inputs(const RunConfig& config);

}  // namespace grpo::rl
