// Keys that are set but that nothing reads in this configuration.
#pragma once

#include "app/config/config_node.h"
#include "rl/config/run_config.h"

namespace grpo::app {

// Throws ConfigError, with the key's place in `root`, for the first key whose value differs from
// its default although another key turns its reader off: sizes of a custom model beside a preset,
// AdamW's settings beside SGD, and so on. What a count of 0 turns off (warm_start, KL) is left
// alone: that is a switch.
void refuse_unused_keys(const rl::RunConfig& config, const ConfigNode& root);

}  // namespace grpo::app
