// Trainer: one rank's run: train, validate, measure, gate, save, repeat.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/world.h"
#include "rl/config/run_config.h"
#include "rl/state/gates.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

struct RunOutcome {
  ExitCode exit_code;           // kDone, kGate, or kSavedAfterSignal
  int64_t num_steps;            // completed
  int64_t max_num_steps;        // of the run, were it not stopped
  std::string early_stop;       // why the run ended early with success; ""
  std::string best_checkpoint;  // "step_40 (validation/accuracy 0.53125)"; "" when checkpoints are
                                // not ranked
  std::vector<GateSummary> gates;
};

// Owned by the rank's main function, used by its thread. Every rank constructs one and calls run();
// the observer is heard on rank 0 only. Errors: DataError and ConfigError for files and configs,
// CommError for peers, NonFiniteError for loss, gradients and weights.
class Trainer {
 public:
  // `config` is resolved for the world's size; the models live on `device`. With `resume_from`, a
  // checkpoint saved at any layout, the run goes on where that one stood. When `stop_requested`
  // becomes true on any rank, all ranks end at the next step boundary, with a checkpoint where
  // checkpointing is on: in a warm start step_0, from which it goes on.
  Trainer(const RunConfig& config, parallel::World& world, Device device, RunObserver& observer,
          const std::atomic<bool>& stop_requested,
          const std::optional<std::filesystem::path>& resume_from);
  ~Trainer();

  // False for a run that was resumed after its last step or after its early stop (with the same
  // patience).
  bool has_steps_left() const;

  // Runs all steps.
  RunOutcome run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace grpo::rl
