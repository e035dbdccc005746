// MemoryPlan: the memory a run will need, by phase and owner, before it needs it.
//
// The plan is a rehearsal: the run's own code (models, optimizer, refit, engine, passes,
// checkpoint) runs for each rank on a rehearsal device, where memory is counted but not there. So
// the plan and the run share all arithmetic. It covers what goes through the Allocator: text,
// tokens and log-probabilities of the step's sequences, the dataset, and the transport's pieces (2
// MiB a member of a group) lie outside. The scratch of CUDA operators is not rehearsed.
//
// Where content decides, the plan takes the worst legal case: every response reaches
// policy.generation.max_new_tokens (or the sequence limit), prompts are as long as the longest, and
// a micro-batch is as full as its token limit and the rank's share of the sequences allow. Measured
// peaks are at most the plan's, and equal to it when the worst case happens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/core/buffer.h"
#include "model/files/model_config.h"
#include "rl/config/run_config.h"
#include "rl/data/prompt_dataset.h"

namespace grpo::rl {

struct PhasePlan {
  std::string phase;
  PhasePeak peak;  // most in use at once
};

struct RankMemoryPlan {
  std::vector<PhasePlan> phases;  // in the order of the run
  size_t workspace_bytes = 0;     // the most that any phase takes from the workspace

  const PhasePlan* find(const std::string& phase) const;  // null when the run has no such phase
  size_t peak_bytes() const;                              // over all phases
};

struct MemoryPlan {
  Device device;  // whose memory it is, of any index
  std::vector<RankMemoryPlan> ranks;

  // The rank with the highest peak: in a phase, or over all phases; the lowest of equals.
  int fullest_rank(const std::string& phase) const;
  int fullest_rank() const;
};

struct MeasuredPeak {
  size_t bytes;            // most in use at once; 0 where the phase did not come
  size_t workspace_bytes;  // most taken from the workspace at once
};

struct MeasuredMemory {
  std::vector<std::vector<MeasuredPeak>> ranks;  // of each: phases in the plan's order
};

// Of all validation datasets.
struct ValidationLengths {
  DatasetLengths lengths;
  int64_t most_examples;  // of one dataset

  ValidationLengths covering(const ValidationLengths& other) const;
};

struct DataLengths {
  DatasetLengths train;
  std::optional<ValidationLengths> validation;
};

// Pure. `config` is resolved; `lengths` are the datasets', or nothing when it is not known (then a
// prompt has 1 token up to all that the limits leave it). Throws ConfigError for models that do not
// divide over the mesh, and Error when the system refuses to reserve addresses.
MemoryPlan plan_memory(const RunConfig& config, const model::ModelConfig& model,
                       const std::optional<DataLengths>& lengths, Device device);

}  // namespace grpo::rl
