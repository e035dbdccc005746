// The program's commands and their options. Each run_* returns the process's exit code, or throws
// the Error that main() turns into one; with local ranks it returns in every rank's process.
#pragma once

#include <cstdint>
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

// grpo_train score --model DIR --input F.jsonl --output F.jsonl [--nproc N] [key.path=value ...]
struct ScoreOptions {
  std::string model_dir;
  std::string input_path;
  std::string output_path;
  std::optional<int> num_local_ranks;
  std::vector<std::string> overrides;  // keys of InferenceConfig
};

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

// grpo_train export --checkpoint DIR --output DIR
struct ExportOptions {
  std::string checkpoint;  // a folder step_N, or a folder of them (then the newest)
  std::string output_dir;  // made if missing; must not hold a model yet
};

int run_train(const TrainOptions& options);
int run_score(const ScoreOptions& options);
int run_generate(const GenerateOptions& options);
int run_export(const ExportOptions& options);

}  // namespace grpo::app
