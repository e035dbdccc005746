// RunMemory: a rank's memory plan beside what it measures.
#pragma once

#include "model/files/model_config.h"
#include "rl/loop/run_context.h"
#include "rl/run/memory_plan.h"
#include "rl/run/run_inputs.h"

namespace grpo::rl {

// One thread; the context outlives it.
class RunMemory {
 public:
  // Plans, reports the plan, and reserves the workspace from it.
  RunMemory(RunContext& run, const model::ModelConfig& model, const RunData& data);

  // This rank's plan and its peaks so far, by phase.
  void add_metrics(MetricSet& metrics) const;
  // Collective. Reports the peaks of all ranks beside their plans.
  void compare(Communicator& everyone) const;

 private:
  const RankMemoryPlan& own_plan() const {
    return plan_.ranks[static_cast<size_t>(run_.world.rank())];
  }

  RunContext& run_;
  MemoryPlan plan_;
};

}  // namespace grpo::rl
