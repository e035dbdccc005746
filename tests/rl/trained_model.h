// A small model that answers some prompts and stops by itself, for end-to-end tests; and runs of
// it.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/world.h"
#include "rl/config/run_config.h"
#include "rl/run/memory_plan.h"
#include "rl/state/metrics.h"

namespace grpo::testing {

// A Hugging Face directory of a model after supervised steps on sums (sums.jsonl in it); made once
// a process.
const std::filesystem::path& trained_model_directory();

// A run that starts from it: sums of two numbers, 8 prompts x 4 samples a step, KL on. Three new
// tokens at most, so that answers of one and two digits stop by themselves and those of three are
// cut off.
rl::RunConfig trained_run_config();

// What a run told rank 0, by step.
struct RecordedRun {
  std::vector<std::map<std::string, double>> steps;  // of steps 1, 2, ...
  std::vector<std::vector<std::string>> samples;     // JSON lines of steps 1, 2, ...
  rl::MemoryPlan plan;
  rl::MeasuredMemory memory;            // at the end
  std::map<std::string, double> setup;  // of step 0
  std::vector<std::string> messages;
  std::vector<std::string> warnings;
  ExitCode exit_code = ExitCode::kOther;
  std::string early_stop;       // of the outcome
  std::string best_checkpoint;  // likewise
};

// Runs the trainer on gtp_remat x data thread ranks, on test_device() unless `device` says
// otherwise. Rank 0 is asked to stop by a message that starts with `stop_at`.
RecordedRun run_training(rl::RunConfig config,
                         const std::optional<std::filesystem::path>& resume_from = std::nullopt,
                         const std::optional<Device>& device = std::nullopt,
                         const std::string& stop_at = "");

}  // namespace grpo::testing
