// Learning-rate schedule: linear warm-up, then constant, linear or cosine decay.
#pragma once

#include <cstdint>
#include <string>

#include "model/core/config_visitor.h"

namespace grpo::rl {

struct SchedulerConfig {
  std::string name = "constant";  // constant, linear, cosine
  int64_t warmup_steps = 0;       // optimizer steps from 0 up to the full rate
  int64_t decay_steps =
      0;  // optimizer steps, warm-up included, to min_lr_ratio; 0: all of the run's
  double min_lr_ratio = 0.0;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

// Factor on the base rate for the 0-based optimizer step; `total_steps` of the run. Step n of a
// warm-up of w uses (n + 1) / w. The first step after the warm-up uses 1; from step decay_steps on
// the factor is min_lr_ratio. A negative step is an InternalError.
double lr_factor(const SchedulerConfig& config, int64_t step, int64_t total_steps);

}  // namespace grpo::rl
