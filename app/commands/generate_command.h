// grpo_train generate: completions of given prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace grpo::app {

// grpo_train generate --model DIR --input F.jsonl --output F.jsonl [sampling options]
// [key.path=value ...]
struct GenerateOptions {
  std::string model_dir;
  std::string input_path;
  std::string output_path;
  std::optional<int> num_local_ranks;
  int64_t num_samples = 1;  // of each prompt
  int64_t seed = 42;
  // Keys of InferenceConfig; --temperature, --top-k, --top-p, --max-new-tokens and --ignore-eos
  // come first, as policy.generation.*.
  std::vector<std::string> overrides;
};

// Returns the exit code, or throws the Error that main() turns into one; with local ranks it
// returns in every rank's process.
int run_generate(const GenerateOptions& options);

}  // namespace grpo::app
