// SftAlgorithm: supervised fine-tuning: the likelihood of responses, over the same data, sharding,
// packing and optimizer as GRPO's updates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/data/prompt_dataset.h"
#include "rl/loop/algorithm.h"
#include "rl/loop/run_context.h"
#include "rl/models/optimizer.h"
#include "rl/models/policy_models.h"

namespace grpo::rl {

class SftAlgorithm : public Algorithm {
 public:
  struct Parts {
    const PromptDataset& dataset;
    const std::vector<PromptDataset>& validation;  // data.validation's, in its order
    PolicyModels& models;
    Optimizer& optimizer;
    int32_t end_token;
  };

  // Everything it is given outlives it. Throws ConfigError when the data hold no whole step.
  SftAlgorithm(RunContext& run, const Parts& parts);

  int64_t num_steps() const override { return num_steps_; }
  void train(int64_t step, RunState& state, MetricSet& metrics) override;
  void validate(int64_t step, RunState& state, MetricSet& metrics) override;

 private:
  // Sum over the validated examples; adds their learnt tokens.
  double sum_nll(const PromptDataset& dataset, double& num_tokens);

  RunContext& run_;
  Parts parts_;
  int64_t num_steps_;
};

}  // namespace grpo::rl
