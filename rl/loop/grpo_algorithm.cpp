#include "rl/loop/grpo_algorithm.h"

#include <algorithm>
#include <numeric>

#include "rl/loop/kept_token_exchange.h"
#include "rl/loop/rollout.h"
#include "rl/loop/sample_record.h"
#include "rl/loop/stopwatch.h"

namespace grpo::rl {

void GrpoAlgorithm::train(int64_t step, RunState& state, MetricSet& metrics) {
  StepRecord record = step_.run(step, state);
  add_rollout_metrics(metrics, record, parts_.rewards.names());
  add_training_metrics(metrics, record);
  add_system_metrics(metrics, record, run_.world.size());
  add_gtp_metrics(metrics, record.gtp);
  if (run_.config.numerics.inject_fault != "none") metrics.set("numerics/injected_fault", 1.0);
  report_samples(step, record);
}

void GrpoAlgorithm::report_samples(int64_t step, StepRecord& record) {
  const LoggerConfig& logger = run_.config.logger;
  const auto num_samples = static_cast<int64_t>(record.sequences.size());
  const int64_t num_recorded =
      step % logger.sample_period == 0 ? std::min(logger.num_recorded_samples(), num_samples) : 0;
  const int64_t num_shown = std::min(logger.num_samples_to_print, num_samples);
  const std::span<RolloutSequence> recorded =
      std::span(record.sequences).first(static_cast<size_t>(num_recorded));
  Communicator& data = parts_.models.groups().data.communicator();
  std::vector<std::vector<MicroBatch>> assigned(static_cast<size_t>(data.size()));
  assigned[0].emplace_back(static_cast<size_t>(num_recorded));
  std::iota(assigned[0][0].begin(), assigned[0][0].end(), size_t{0});
  deliver_kept_tokens(recorded, assigned, data);
  if (!run_.reports()) return;
  const SampleOrigin origin{.step = step,
                            .weights_version = record.weights_version,
                            .data_path = run_.config.data.train.path,
                            .first_prompt_index = record.first_prompt_index,
                            .reward_names = parts_.rewards.names()};
  const auto example_at = [&](int64_t index) -> const PromptExample& {
    return parts_.dataset.example(index);
  };
  SampleBatch batch = record_samples(origin, example_at, recorded, record.signals);
  for (int64_t i = num_recorded; i < num_shown; ++i) {
    const auto index = static_cast<size_t>(i);
    const RolloutSequence& sequence = record.sequences[index];
    batch.lines.push_back(sample_json(origin, sequence, example_at(sequence.example),
                                      record.signals[index], nullptr));
  }
  run_.observer.on_samples(step, batch);
  const TokenAgreement& agreement = record.agreement;
  if (run_.config.numerics.is_exact() &&
      agreement.num_mismatched + agreement.num_sets_differing != 0) {
    run_.observer.on_warning(fmt::format(
        "exact mode: {} of {} log-probabilities and {} sets of kept tokens differ between "
        "generation and training",
        agreement.num_mismatched, agreement.num_checked, agreement.num_sets_differing));
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
