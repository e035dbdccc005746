// grpo_train score: log-probabilities of given sequences.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace grpo::app {

// grpo_train score --model DIR --input F.jsonl --output F.jsonl [--nproc N] [key.path=value ...]
struct ScoreOptions {
  std::string model_dir;
  std::string input_path;
  std::string output_path;
  std::optional<int> num_local_ranks;
  std::vector<std::string> overrides;  // keys of InferenceConfig
};

// Returns the exit code, or throws the Error that main() turns into one; with local ranks it
// returns in every rank's process.
int run_score(const ScoreOptions& options);

}  // namespace grpo::app
