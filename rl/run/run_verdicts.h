// RunVerdicts: what judges a run by its metrics: gates, early stop, the ranking of its checkpoints.
#pragma once

#include <cstdint>

#include "rl/config/run_config.h"
#include "rl/state/checkpoint_ranking.h"
#include "rl/state/early_stop.h"
#include "rl/state/gates.h"

namespace grpo::rl {

struct RunVerdicts {
  // Throws ConfigError for metrics that this run does not have.
  explicit RunVerdicts(const RunConfig& config);

  // Into the state of a checkpoint and back.
  void save(RunState& state) const;
  void restore(const RunState& state);

  GateKeeper gates;
  EarlyStop early_stop;
  CheckpointRanking ranking;
};

}  // namespace grpo::rl
