// Rules between the sections of a RunConfig that belong to one algorithm or to metrics; part of
// resolve().
#pragma once

#include "rl/config/run_config.h"

namespace grpo::rl {

// Throws ConfigError when `algorithm: sft` lacks data to learn or a batch size.
void check_sft(const RunConfig& config);

// Throws ConfigError for datasets of one name, periods without data, and data without periods.
void check_validation(const RunConfig& config);

// Throws ConfigError when a gate, early_stop or checkpointing names a metric that this run does not
// have.
void check_named_metrics(const RunConfig& config);

}  // namespace grpo::rl
