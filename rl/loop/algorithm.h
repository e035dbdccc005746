// Algorithm: what a run repeats. The trainer around it saves, gates and stops.
#pragma once

#include <cstdint>

#include "rl/state/checkpointing.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

// One thread. All calls are collective over the world; metrics of train and validation that do not
// describe one rank (times, memory, gathers) are equal on all ranks.
class Algorithm {
 public:
  virtual ~Algorithm() = default;

  // Of the whole run.
  virtual int64_t num_steps() const = 0;
  // Trains step `step` from where `state` stands, moves it on, and adds the step's metrics.
  virtual void train(int64_t step, RunState& state, MetricSet& metrics) = 0;
  // After step `step` (0: before the first one). Adds its metrics; the training that follows has
  // the same bits without it.
  virtual void validate(int64_t step, RunState& state, MetricSet& metrics) = 0;
};

}  // namespace grpo::rl
