// GrpoStep: one step of the loop: refit, roll out, reward, advantages, log-probabilities, updates.
#pragma once

#include <cstdint>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "rl/data/prompt_dataset.h"
#include "rl/data/reward.h"
#include "rl/loop/run_context.h"
#include "rl/loop/step_metrics.h"
#include "rl/models/optimizer.h"
#include "rl/models/policy_models.h"
#include "rl/state/checkpointing.h"

namespace grpo::rl {

// One thread; everything it is given outlives it.
class GrpoStep {
 public:
  struct Parts {
    const model::Tokenizer& tokenizer;
    const PromptDataset& dataset;
    const RewardSet& rewards;
    PolicyModels& models;
    Optimizer& optimizer;
    std::vector<int32_t> stop_token_ids;
  };

  GrpoStep(RunContext& run, Parts parts) : run_(run), parts_(std::move(parts)) {}

  // Collective over the world. Draws the prompts that `state` says are next and moves it on.
  StepRecord run(int64_t step, RunState& state);

  generation::SamplingParams sampling_params(generation::DrawSplit split) const;

 private:
  void refit(int64_t step, RunState& state, StepRecord& record);
  void roll_out(int64_t step, RunState& state, StepRecord& record);
  void compute_advantages(StepRecord& record) const;
  std::vector<SequenceSignals> compute_signals(int64_t step, StepRecord& record);
  void update(int64_t step, StepRecord& record);
  int64_t updates_per_step() const;
  ops::SamplingFilter filter() const;

  RunContext& run_;
  Parts parts_;
};

}  // namespace grpo::rl
