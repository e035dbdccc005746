#include "rl/run/run_verdicts.h"

#include "rl/config/known_metrics.h"

namespace grpo::rl {

RunVerdicts::RunVerdicts(const RunConfig& config)
    : gates(config.gates, known_metric_names(config)),
      early_stop(config.early_stop()),
      ranking(config.checkpointing) {}

void RunVerdicts::save(RunState& state) const {
  state.gates_json = gates.state_json();
  state.early_stop_json = early_stop.state_json();
  state.ranking_json = ranking.state_json();
}

void RunVerdicts::restore(const RunState& state) {
  gates.restore(state.gates_json);
  early_stop.restore(state.early_stop_json);
  ranking.restore(state.ranking_json);
}

}  // namespace grpo::rl
