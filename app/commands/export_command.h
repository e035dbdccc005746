// grpo_train export: a checkpoint as a Hugging Face directory.
#pragma once

#include <string>

namespace grpo::app {

// grpo_train export --checkpoint DIR --output DIR
struct ExportOptions {
  std::string checkpoint;  // a folder step_N, or a folder of them (then the newest)
  std::string output_dir;  // made if missing; must not hold a model yet
};

// Returns the exit code, or throws the Error that main() turns into one.
int run_export(const ExportOptions& options);

}  // namespace grpo::app
