// The names of a run's metrics, known before it starts.
#pragma once

#include <set>
#include <string>

#include "rl/config/run_config.h"

namespace grpo::rl {

// Every metric a run of this configuration can log; gates may name these.
std::set<std::string> known_metric_names(const RunConfig& config);

}  // namespace grpo::rl
