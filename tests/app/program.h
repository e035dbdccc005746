// The built program, run as users run it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace grpo::testing {

struct ProgramRun {
  int exit_code;  // 128 + signal when it was killed; a run is killed after a minute
  std::string out;
  std::string err;
  double seconds;
};

// Runs grpo_train with these words; stdout goes to `out_path` when one is given.
ProgramRun run_program(const std::vector<std::string>& words, const std::string& out_path = "");

}  // namespace grpo::testing
