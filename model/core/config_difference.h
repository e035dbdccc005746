// ConfigDifference: where two configs first differ.
#pragma once

#include <string>

namespace grpo {

struct ConfigDifference {
  std::string key;  // "grpo.seed", "hidden_size"
  std::string first;
  std::string second;
};

}  // namespace grpo
