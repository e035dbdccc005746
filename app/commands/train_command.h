// grpo_train --config: trains, or checks a config.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace grpo::app {

// grpo_train --config FILE [--nproc N] [--check] [--resume DIR|auto] [key.path=value ...]
struct TrainOptions {
  std::string config_path;
  std::optional<int> num_local_ranks;  // --nproc; empty: from the environment or the config's mesh
  bool check_only = false;
  std::optional<std::string> resume;   // --resume: a checkpoint, a folder of them, or "auto"
  std::vector<std::string> overrides;  // "key.path=value"
};

// Returns the exit code, or throws the Error that main() turns into one; with local ranks it
// returns in every rank's process.
int run_train(const TrainOptions& options);

}  // namespace grpo::app
