// RunCheckpoint: a run's state into checkpoints and back: models, optimizer, gates and the loop's
// place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "rl/checkpointing.h"
#include "rl/gates.h"
#include "rl/optimizer.h"
#include "rl/policy_models.h"
#include "rl/run_context.h"

namespace grpo::rl {

// One thread; everything it is given outlives it.
class RunCheckpoint {
 public:
  RunCheckpoint(RunContext& run, PolicyModels& models, Optimizer& optimizer, GateKeeper& gates)
      : run_(run), models_(models), optimizer_(optimizer), gates_(gates) {}

  // Collective. All parts stand as when the checkpoint was saved; returns the loop's place. Throws
  // ConfigError for another seed, DataError for files that do not fit.
  RunState resume(const std::filesystem::path& folder);

  // Collective. Saves where checkpointing is on, once a step, and removes checkpoints beyond those
  // to keep.
  // `before_commit` is called on world rank 0 when all but the last file is written: what it leaves
  // on disk is there whenever the checkpoint is.
  void save(int64_t step, RunState& state, const std::function<void()>& before_commit = {});

 private:
  parallel::CheckpointContent content() const;
  model::ModelConfig model_config() const;  // with the run's precision

  RunContext& run_;
  PolicyModels& models_;
  Optimizer& optimizer_;
  GateKeeper& gates_;
  std::optional<int64_t> saved_step_;
};

}  // namespace grpo::rl
