// RunCheckpoint: a run's state into checkpoints and back: models, optimizer, verdicts and the
// loop's place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "rl/loop/run_context.h"
#include "rl/models/optimizer.h"
#include "rl/models/policy_models.h"
#include "rl/run/run_verdicts.h"
#include "rl/state/checkpointing.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

// One thread; everything it is given outlives it.
class RunCheckpoint {
 public:
  RunCheckpoint(RunContext& run, PolicyModels& models, Optimizer& optimizer, RunVerdicts& verdicts)
      : run_(run), models_(models), optimizer_(optimizer), verdicts_(verdicts) {}

  // Collective. All parts stand as when the checkpoint was saved; returns the loop's place. Throws
  // ConfigError for another seed or algorithm, DataError for files that do not fit.
  RunState resume(const std::filesystem::path& folder);

  // Collective. Saves where checkpointing is on, once a step, and removes checkpoints beyond those
  // to keep. `metrics` are the step's.
  // `before_commit` is called on world rank 0 when all but the last file is written: what it leaves
  // on disk is there whenever the checkpoint is.
  void save(int64_t step, RunState& state, const MetricSet& metrics,
            const std::function<void()>& before_commit = {});

 private:
  parallel::CheckpointContent content() const;
  bool refits(const RunState& state) const;
  void rank(int64_t step, const MetricSet& metrics);

  RunContext& run_;
  PolicyModels& models_;
  Optimizer& optimizer_;
  RunVerdicts& verdicts_;
  std::optional<int64_t> saved_step_;
};

// Collective. The policy's weights from a checkpoint of any run of the same model; `path` is
// warm_start.checkpoint. Throws ConfigError when no checkpoint is there, DataError for files that
// do not fit.
void load_initial_weights(const std::filesystem::path& path, const std::filesystem::path& tokenizer,
                          PolicyModels& models);

}  // namespace grpo::rl
