#include "rl/loop/validation_metrics.h"

#include <algorithm>

namespace grpo::rl {

namespace {

struct Sums {
  double reward = 0;
  double tokens = 0;
  double best_reward = 0;  // of each prompt
  double num_samples = 0;
  double num_prompts = 0;

  void add(const Sums& other) {
    reward += other.reward;
    tokens += other.tokens;
    best_reward += other.best_reward;
    num_samples += other.num_samples;
    num_prompts += other.num_prompts;
  }
};

Sums sums_of(const std::vector<ValidationSample>& samples) {
  Sums sums;
  for (size_t i = 0; i < samples.size();) {
    double best = samples[i].reward;
    const int64_t prompt = samples[i].prompt;
    for (; i < samples.size() && samples[i].prompt == prompt; ++i) {
      best = std::max(best, samples[i].reward);
      sums.reward += samples[i].reward;
      sums.tokens += static_cast<double>(samples[i].num_tokens);
      sums.num_samples += 1;
    }
    sums.best_reward += best;
    sums.num_prompts += 1;
  }
  return sums;
}

void add_metrics(MetricSet& metrics, const std::string& prefix, const Sums& sums) {
  metrics.set(prefix + "accuracy", sums.reward / sums.num_samples);
  metrics.set(prefix + "avg_length", sums.tokens / sums.num_samples);
  if (sums.num_samples > sums.num_prompts) {
    metrics.set(prefix + "pass_k", sums.best_reward / sums.num_prompts);
  }
}

}  // namespace

void add_validation_metrics(MetricSet& metrics, const std::vector<ValidationResult>& results) {
  Sums total;
  for (const ValidationResult& result : results) total.add(sums_of(result.samples));
  add_metrics(metrics, "validation/", total);
  if (results.size() < 2) return;
  for (const ValidationResult& result : results) {
    add_metrics(metrics, "validation/" + result.name + "/", sums_of(result.samples));
  }
}

}  // namespace grpo::rl
