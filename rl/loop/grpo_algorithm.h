// GrpoAlgorithm: the GRPO step and its validation by drawn completions.
#pragma once

#include <cstdint>
#include <vector>

#include "rl/loop/algorithm.h"
#include "rl/loop/grpo_step.h"
#include "rl/loop/validation_metrics.h"

namespace grpo::rl {

class GrpoAlgorithm : public Algorithm {
 public:
  // Everything it is given outlives it; `validation` holds data.validation's, in its order.
  GrpoAlgorithm(RunContext& run, const GrpoStep::Parts& parts,
                const std::vector<PromptDataset>& validation)
      : run_(run), parts_(parts), step_(run, parts), validation_(validation) {}

  int64_t num_steps() const override { return run_.config.grpo.max_num_steps; }
  void train(int64_t step, RunState& state, MetricSet& metrics) override;
  void validate(int64_t step, RunState& state, MetricSet& metrics) override;

 private:
  // Collective: the observer's rank receives the recorded samples' kept tokens.
  void report_samples(int64_t step, StepRecord& record);
  std::vector<ValidationSample> draw_validation(const PromptDataset& dataset,
                                                int64_t first_draw_index, int64_t num_prompts);

  RunContext& run_;
  GrpoStep::Parts parts_;
  GrpoStep step_;
  const std::vector<PromptDataset>& validation_;
};

}  // namespace grpo::rl
