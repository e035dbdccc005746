// What a step of supervised fine-tuning measured, turned into metrics.
#pragma once

#include <vector>

#include "rl/loop/supervised_update.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

// A step of supervised fine-tuning.
struct SupervisedStep {
  std::vector<SupervisedExample> examples;
  SupervisedResult result{};
  double learning_rate = 0;
  double total_seconds = 0;
  double training_seconds = 0;
};
void add_supervised_metrics(MetricSet& metrics, const SupervisedStep& step, int world_size);

}  // namespace grpo::rl
