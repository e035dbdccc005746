#include "rl/loop/supervised_metrics.h"

namespace grpo::rl {

void add_supervised_metrics(MetricSet& metrics, const SupervisedStep& step, int world_size) {
  double tokens = 0;
  double prompt_tokens = 0;
  for (const SupervisedExample& example : step.examples) {
    tokens += static_cast<double>(example.num_tokens());
    prompt_tokens += static_cast<double>(example.first_target);
  }
  const auto count = static_cast<double>(step.examples.size());
  metrics.set("train/loss", step.result.loss);
  metrics.set("train/grad_norm", step.result.grad_norm);
  metrics.set("train/lr", step.learning_rate);
  metrics.set("train/global_valid_seqs", count);
  metrics.set("train/global_valid_toks", num_targets(step.examples));
  metrics.set("train/total_num_tokens", tokens);
  metrics.set("train/mean_prompt_length", prompt_tokens / count);
  metrics.set("timing/train/total_step_time", step.total_seconds);
  metrics.set("timing/train/policy_training", step.training_seconds);
  const double ranks = world_size;
  metrics.set("performance/tokens_per_sec_per_gpu", tokens / step.total_seconds / ranks);
  metrics.set("performance/policy_training_tokens_per_sec_per_gpu",
              tokens / step.training_seconds / ranks);
  metrics.set("performance/samples_per_sec", count / step.total_seconds);
}

}  // namespace grpo::rl
