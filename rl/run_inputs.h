// The files that a run's config names, checked as the ranks will check them.
#pragma once

#include <cstdint>
#include <vector>

#include "rl/prompt_dataset.h"
#include "rl/run_config.h"

namespace grpo::rl {

// data.train with the limit that the sequence length leaves to prompts.
DatasetConfig limited_dataset(const RunConfig& config);

// Throws ConfigError when warm-start steps have no end token to learn, DataError for an example
// that is too long with its response. Nothing without warm-start steps.
void check_warm_start(const RunConfig& config, const PromptDataset& dataset,
                      const std::vector<int32_t>& stops);

// Opens tokenizer, data and model of a resolved config and throws what a run would: ConfigError or
// DataError. Values of weights are not read.
void check_run_inputs(const RunConfig& config);

}  // namespace grpo::rl
