// What validation samples say, as metrics. Definitions: README, "Metrics".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/state/metrics.h"

namespace grpo::rl {

struct ValidationSample {
  int64_t prompt;  // within its dataset; samples of a prompt are neighbours
  double reward;
  int64_t num_tokens;  // of the response
};

struct ValidationResult {
  std::string name;  // of the dataset
  std::vector<ValidationSample> samples;
};

// accuracy, avg_length and, where prompts have several samples, pass_k: over all datasets, and of
// each when there are several.
void add_validation_metrics(MetricSet& metrics, const std::vector<ValidationResult>& results);

}  // namespace grpo::rl
