// InferenceConfig: the part of the config tree that `score` and `generate` use, under the same
// keys.
#pragma once

#include <string>
#include <vector>

#include "app/config/config_origins.h"
#include "parallel/layout/parallel_config.h"
#include "rl/config/run_config.h"

namespace grpo::app {

struct InferenceConfig {
  rl::PolicyConfig
      policy;  // model_name is the command's --model; training-only keys keep their defaults
  parallel::ParallelConfig parallel;
  rl::NumericsConfig numerics;

  void visit(ConfigVisitor& visitor);
};

// Defaults and key=value words; `origins`, when given, learns the words' keys. Throws ConfigError;
// a key that these commands do not use is an unknown key.
InferenceConfig load_inference_config(const std::string& model_dir,
                                      const std::vector<std::string>& overrides,
                                      ConfigOrigins* origins = nullptr);

}  // namespace grpo::app
