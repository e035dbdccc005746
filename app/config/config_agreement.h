// Ranks that a launcher starts read their configs by themselves: all must have read the same.
#pragma once

#include <optional>
#include <string>

#include "model/core/communicator.h"
#include "model/core/config_difference.h"

namespace grpo::app {

// Where two configs, as config_to_yaml() writes them, first differ; nullopt when they are equal.
std::optional<ConfigDifference> find_difference(const std::string& first,
                                                const std::string& second);

// Collective. Throws ConfigError on every rank, naming a rank and the key, unless all ranks have
// rank 0's text.
void refuse_different_configs(const std::string& own_yaml, Communicator& everyone);

}  // namespace grpo::app
