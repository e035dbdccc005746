#include "rl/loop/sft_algorithm.h"

#include <algorithm>

#include "rl/loop/step_metrics.h"
#include "rl/loop/stopwatch.h"
#include "rl/loop/supervised_metrics.h"
#include "rl/loop/supervised_update.h"
#include "rl/objective/lr_schedule.h"

namespace grpo::rl {

namespace {

int64_t steps_of(const RunConfig& config, int64_t num_examples) {
  const int64_t batch = config.policy.train_global_batch_size;
  if (config.sft.max_num_epochs == 0) return config.sft.max_num_steps;
  const int64_t steps = num_examples * config.sft.max_num_epochs / batch;
  if (steps == 0) {
    throw ConfigError(
        fmt::format("policy.train_global_batch_size is {}, but {} epochs (sft.max_num_epochs) of "
                    "{} hold {} examples; allowed: at "
                    "most that",
                    batch, config.sft.max_num_epochs, config.data.train.path,
                    num_examples * config.sft.max_num_epochs));
  }
  return std::min(config.sft.max_num_steps, steps);
}

}  // namespace

SftAlgorithm::SftAlgorithm(RunContext& run, const Parts& parts)
    : run_(run), parts_(parts), num_steps_(steps_of(run.config, parts.dataset.size())) {}

void SftAlgorithm::train(int64_t step, RunState& state, MetricSet& metrics) {
  const PolicyConfig& policy = run_.config.policy;
  const parallel::GtpCounters before = parts_.models.policy_store().counters();
  SupervisedStep record;
  {
    const Stopwatch whole(record.total_seconds);
    run_.enter("policy_training", step);
    record.examples =
        draw_supervised(parts_.dataset, state.next_draw_index, policy.train_global_batch_size,
                        run_.config.seed(), parts_.end_token);
    state.next_draw_index += policy.train_global_batch_size;
    record.learning_rate = policy.optimizer.kwargs.lr *
                           lr_factor(policy.scheduler, parts_.optimizer.num_steps(), num_steps_);
    const Stopwatch training(record.training_seconds);
    record.result = update_supervised(parts_.models.policy(), parts_.models.policy_store(),
                                      parts_.optimizer, record.examples,
                                      {.micro_batches = policy.sequence_packing.training(),
                                       .learning_rate = record.learning_rate,
                                       .max_grad_norm = policy.max_grad_norm},
                                      run_.ctx);
    parts_.models.policy_store().drop_idle_buffers();
  }
  add_supervised_metrics(metrics, record, run_.world.size());
  add_gtp_metrics(metrics, parts_.models.policy_store().counters().since(before));
}

double SftAlgorithm::sum_nll(const PromptDataset& dataset, double& num_tokens) {
  const SftConfig& sft = run_.config.sft;
  int64_t last = dataset.size();
  if (sft.val_batches > 0) last = std::min(last, sft.val_batches * sft.val_global_batch_size);
  double nll = 0;
  for (int64_t first = 0; first < last; first += sft.val_global_batch_size) {
    const std::vector<SupervisedExample> examples =
        draw_supervised(dataset, first, std::min(sft.val_global_batch_size, last - first),
                        run_.config.seed(), parts_.end_token);
    nll += supervised_nll(parts_.models.policy(), parts_.models.groups(), examples,
                          run_.config.policy.sequence_packing.logprob_mb_tokens, run_.ctx);
    num_tokens += num_targets(examples);
    if (run_.reports())
      run_.observer.on_progress("validation", std::min(first + sft.val_global_batch_size, last),
                                last);
  }
  return nll;
}

void SftAlgorithm::validate(int64_t step, RunState&, MetricSet& metrics) {
  const std::vector<ValidationDatasetConfig>& configs = run_.config.data.validation;
  run_.enter("validation", step);
  double seconds = 0;
  double total = 0;
  double total_tokens = 0;
  std::vector<double> losses;
  {
    const Stopwatch watch(seconds);
    for (const PromptDataset& dataset : parts_.validation) {
      double tokens = 0;
      const double nll = sum_nll(dataset, tokens);
      losses.push_back(nll / tokens);
      total += nll;
      total_tokens += tokens;
    }
    parts_.models.policy_store().drop_idle_buffers();
  }
  metrics.set("validation/loss", total / total_tokens);
  if (losses.size() > 1) {
    for (size_t i = 0; i < losses.size(); ++i) {
      metrics.set("validation/" + configs[i].name + "/loss", losses[i]);
    }
  }
  metrics.set("timing/validation/total_validation_time", seconds);
  if (run_.reports()) {
    run_.observer.on_message(fmt::format("validation at step {}: loss {:.6g} over {:.0f} tokens",
                                         step, total / total_tokens, total_tokens));
  }
}

}  // namespace grpo::rl
