// ConfigKeyError: a config value that was read well and turns out wrong later.
#pragma once

#include <string>

#include "model/core/errors.h"

namespace grpo {

// A config key whose value other keys or the model's files rule out. Whoever knows where the key
// stands in the file puts the place before it.
class ConfigKeyError : public ConfigError {
 public:
  // "<key> <problem>": "policy.generation.top_k" "is 5; allowed: ..."
  ConfigKeyError(const std::string& key, const std::string& problem)
      : ConfigError(key + " " + problem), key_(key) {}
  const std::string& key() const noexcept { return key_; }

 private:
  std::string key_;
};

}  // namespace grpo
