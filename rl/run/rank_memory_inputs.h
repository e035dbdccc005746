// RankMemoryInputs: everything that one rank's memory depends on and that ranks of a run do not
// have alike. Ranks with equal needs use equal memory at every moment, so that a memory plan
// rehearses one of them.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/files/model_config.h"
#include "parallel/refit/refit_plan.h"
#include "rl/config/run_config.h"

namespace grpo::rl {

// A rank's part of a (prompt, sample) list.
struct EngineShare {
  int64_t num_prompts;
  int64_t num_samples;
  int64_t first_num_samples;  // of the first prompt

  auto operator<=>(const EngineShare&) const = default;
};

EngineShare engine_share(int64_t num_prompts, int64_t samples_per_prompt, int world_size, int rank);

struct RankMemoryInputs {
  int64_t owned_elements;  // that its optimizer keeps state for
  EngineShare rollout;
  EngineShare validation;
  int64_t refit_bytes;      // staging of refits
  size_t checkpoint_bytes;  // staging of checkpoints

  auto operator<=>(const RankMemoryInputs&) const = default;
};

// Of all ranks. `refit_plan` is null for a run without a generation model, `num_validation_prompts`
// are of one batch.
std::vector<RankMemoryInputs> memory_inputs_of_ranks(const RunConfig& config,
                                                     const model::ModelConfig& model,
                                                     const parallel::RefitPlan* refit_plan,
                                                     int64_t num_validation_prompts);

}  // namespace grpo::rl
