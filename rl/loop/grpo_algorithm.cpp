#include "rl/loop/grpo_algorithm.h"

#include <algorithm>

#include "rl/loop/rollout.h"
#include "rl/loop/stopwatch.h"

namespace grpo::rl {

void GrpoAlgorithm::train(int64_t step, RunState& state, MetricSet& metrics) {
  const StepRecord record = step_.run(step, state);
  add_rollout_metrics(metrics, record, parts_.rewards.names());
  add_training_metrics(metrics, record);
  add_system_metrics(metrics, record, run_.world.size());
  add_gtp_metrics(metrics, record.gtp);
  if (run_.config.numerics.inject_fault != "none") metrics.set("numerics/injected_fault", 1.0);
  report_samples(step, record);
}

void GrpoAlgorithm::report_samples(int64_t step, const StepRecord& record) {
  if (!run_.reports()) return;
  for (size_t i = 0; i < record.sequences.size(); ++i) {
    run_.observer.on_sample(
        step, sample_json(record.sequences[i], parts_.dataset.example(record.sequences[i].example),
                          record.advantages.advantage[i]));
  }
  const TokenAgreement& agreement = record.agreement;
  if (run_.config.numerics.is_exact() &&
      agreement.num_mismatched + agreement.num_cuts_differing != 0) {
    run_.observer.on_warning(
        fmt::format("exact mode: {} of {} log-probabilities and {} sampling cuts differ between "
                    "generation and training",
                    agreement.num_mismatched, agreement.num_checked, agreement.num_cuts_differing));
  }
}

std::vector<ValidationSample> GrpoAlgorithm::draw_validation(const PromptDataset& dataset,
                                                             int64_t first_draw_index,
                                                             int64_t num_prompts) {
  const GrpoConfig& grpo = run_.config.grpo;
  Rollout rollout(parts_.models.engine(), parts_.tokenizer, parts_.rewards,
                  parts_.models.generation_store().groups().world.communicator());
  std::vector<ValidationSample> samples;
  for (int64_t first = 0; first < num_prompts; first += grpo.val_batch_size) {
    const int64_t last = std::min(first + grpo.val_batch_size, num_prompts);
    RolloutPlan plan{.prompts = {},
                     .first_draw_index = first_draw_index + first,
                     .num_samples = grpo.val_num_generations_per_prompt};
    for (int64_t i = first; i < last; ++i) plan.prompts.push_back(&dataset.example(i));
    Rollout::Times times{};
    const auto sequences = rollout.run(
        plan, step_.sampling_params(generation::DrawSplit::kValidation), run_.ctx,
        [](int64_t, int64_t) {}, times);
    for (const RolloutSequence& sequence : sequences) {
      samples.push_back({.prompt = first + sequence.group,
                         .reward = sequence.reward,
                         .num_tokens = static_cast<int64_t>(sequence.response_tokens.size())});
    }
    if (run_.reports()) run_.observer.on_progress("validation", last, num_prompts);
  }
  return samples;
}

void GrpoAlgorithm::validate(int64_t step, RunState& state, MetricSet& metrics) {
  run_.enter("validation", step);
  double seconds = 0;
  std::vector<ValidationResult> results;
  {
    const Stopwatch watch(seconds);
    // The next step's refit finds these weights in place: what changed belongs to its count.
    state.pending_changed_elements += parts_.models.refit().changed_elements;
    int64_t first_draw_index = 0;
    for (size_t i = 0; i < validation_.size(); ++i) {
      const int64_t most = run_.config.grpo.max_val_samples;
      const int64_t size = validation_[i].size();
      results.push_back({.name = run_.config.data.validation[i].name,
                         .samples = draw_validation(validation_[i], first_draw_index,
                                                    most == 0 ? size : std::min(size, most))});
      first_draw_index += size;
    }
  }
  add_validation_metrics(metrics, results);
  metrics.set("timing/validation/total_validation_time", seconds);
  if (!run_.reports()) return;
  std::string line =
      fmt::format("validation at step {}: accuracy {:.5g}, average length {:.5g}", step,
                  *metrics.get("validation/accuracy"), *metrics.get("validation/avg_length"));
  if (const auto pass = metrics.get("validation/pass_k"))
    line += fmt::format(", pass_k {:.5g}", *pass);
  run_.observer.on_message(line);
}

}  // namespace grpo::rl
