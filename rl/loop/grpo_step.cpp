#include "rl/loop/grpo_step.h"

#include <span>
#include <utility>

#include "parallel/comm/host_collectives.h"
#include "rl/loop/policy_update.h"
#include "rl/loop/rollout.h"
#include "rl/loop/sequence_scorer.h"
#include "rl/loop/stopwatch.h"
#include "rl/objective/advantage.h"

namespace grpo::rl {

int64_t GrpoStep::updates_per_step() const {
  return run_.config.grpo.num_prompts_per_step * run_.config.grpo.num_generations_per_prompt /
         run_.config.policy.train_global_batch_size;
}

ops::SamplingFilter GrpoStep::filter() const { return run_.config.policy.generation.filter(); }

generation::SamplingParams GrpoStep::sampling_params(generation::DrawSplit split) const {
  const generation::GenerationConfig& g = run_.config.policy.generation;
  return {.filter = filter(),
          .greedy = false,
          .max_new_tokens = g.max_new_tokens,
          .stop_token_ids = parts_.stop_token_ids,
          .ignore_stop = g.ignore_eos,
          .seed = static_cast<uint64_t>(run_.config.grpo.seed),
          .split = split,
          .stores_kept_tokens = split == generation::DrawSplit::kTrain};
}

void GrpoStep::refit(int64_t step, RunState& state, StepRecord& record) {
  const Stopwatch watch(record.times.prepare_for_generation);
  run_.enter("refit", step);
  record.refit = parts_.models.refit();
  record.refit.changed_elements += std::exchange(state.pending_changed_elements, 0);
  record.times.transfer_and_update_weights = record.refit.seconds;
}

void GrpoStep::roll_out(int64_t step, RunState& state, StepRecord& record) {
  run_.enter("generation", step);
  record.weights_version = parts_.optimizer.num_steps();
  record.first_prompt_index = state.next_draw_index;
  RolloutPlan plan{.prompts = {},
                   .first_draw_index = state.next_draw_index,
                   .num_samples = run_.config.grpo.num_generations_per_prompt};
  for (int64_t i = 0; i < run_.config.grpo.num_prompts_per_step; ++i) {
    plan.prompts.push_back(&parts_.dataset.at_position(
        plan.first_draw_index + i, static_cast<uint64_t>(run_.config.grpo.seed)));
  }
  state.next_draw_index += run_.config.grpo.num_prompts_per_step;
  Rollout rollout(parts_.models.engine(), parts_.tokenizer, parts_.rewards,
                  parts_.models.generation_store().groups().world.communicator());
  Rollout::Times times{};
  record.sequences = rollout.run(
      plan, sampling_params(generation::DrawSplit::kTrain), run_.ctx,
      [&](int64_t done, int64_t total) {
        if (run_.reports()) run_.observer.on_progress("generation", done, total);
      },
      times);
  record.times.generation = times.generation_seconds;
  record.times.reward_calculation = times.reward_seconds;
}

void GrpoStep::compute_advantages(StepRecord& record) const {
  std::vector<int64_t> groups;
  std::vector<double> values;
  for (const RolloutSequence& sequence : record.sequences) {
    groups.push_back(sequence.group);
    values.push_back(sequence.reward);
  }
  record.advantages = group_advantages(groups, values, run_.config.grpo.use_leave_one_out_baseline,
                                       run_.config.grpo.normalize_rewards);
}

std::vector<SequenceSignals> GrpoStep::compute_signals(int64_t step, StepRecord& record) {
  const Stopwatch watch(record.times.policy_and_reference_logprobs);
  run_.enter("policy_and_reference_logprobs", step);
  std::vector<SequenceSignals> signals(record.sequences.size());
  for (size_t i = 0; i < signals.size(); ++i) signals[i].advantage = record.advantages.advantage[i];
  ScorerOptions options{.inv_temperature = filter().inv_temperature(),
                        .max_tokens = run_.config.policy.sequence_packing.logprob_mb_tokens,
                        .applies_filter = true,
                        .filter_check = nullptr};
  if (updates_per_step() > 1) {
    model::FilterCheck filter_check{.filter = filter()};
    options.filter_check = &filter_check;
    SequenceLogprobs previous = score_sequences(parts_.models.policy(), parts_.models.groups(),
                                                record.sequences, options, run_.ctx);
    record.agreement.num_sets_differing = filter_check.num_differing;
    for (size_t i = 0; i < signals.size(); ++i) {
      signals[i].previous_logprobs = std::move(previous.processed[i]);
      record.agreement.add(signals[i].previous_logprobs, record.sequences[i].generation_logprobs);
    }
    options.filter_check = nullptr;
  }
  if (run_.config.needs_reference()) {
    options.applies_filter = false;
    SequenceLogprobs reference = score_sequences(parts_.models.reference(), parts_.models.groups(),
                                                 record.sequences, options, run_.ctx);
    parts_.models.reference_store().drop_idle_buffers();
    for (size_t i = 0; i < signals.size(); ++i) {
      signals[i].reference_logprobs = std::move(reference.unfiltered[i]);
    }
  }
  return signals;
}

void GrpoStep::update(int64_t step, StepRecord& record) {
  const Stopwatch watch(record.times.policy_training);
  run_.enter("policy_training", step);
  const auto per_update = static_cast<size_t>(run_.config.policy.train_global_batch_size);
  const int64_t total_updates = run_.config.grpo.max_num_steps * updates_per_step();
  for (size_t begin = 0; begin < record.sequences.size(); begin += per_update) {
    const std::span<RolloutSequence> sequences =
        std::span(record.sequences).subspan(begin, per_update);
    const std::span<const SequenceSignals> own_signals =
        std::span(record.signals).subspan(begin, per_update);
    record.learning_rate =
        run_.config.policy.optimizer.kwargs.lr *
        lr_factor(run_.config.policy.scheduler, parts_.optimizer.num_steps(), total_updates);
    model::FilterCheck filter_check{.filter = filter()};
    const bool supplies_previous = updates_per_step() == 1;
    record.updates.push_back(
        update_policy(run_.config.loss_fn, parts_.models.policy(), parts_.models.policy_store(),
                      parts_.optimizer, sequences, own_signals,
                      {.inv_temperature = filter().inv_temperature(),
                       .micro_batches = run_.config.policy.sequence_packing.training(),
                       .learning_rate = record.learning_rate,
                       .max_grad_norm = run_.config.policy.max_grad_norm,
                       .filter_check = supplies_previous ? &filter_check : nullptr},
                      run_.ctx));
    if (!supplies_previous) continue;
    record.agreement.num_sets_differing = filter_check.num_differing;
    for (size_t i = 0; i < sequences.size(); ++i) {
      record.agreement.add(record.updates.back().logprobs[i], sequences[i].generation_logprobs);
      record.signals[i].previous_logprobs = std::move(record.updates.back().logprobs[i]);
    }
  }
  parts_.models.policy_store().drop_idle_buffers();
}

StepRecord GrpoStep::run(int64_t step, RunState& state) {
  StepRecord record;
  const parallel::GtpCounters before = parts_.models.policy_store().counters();
  {
    const Stopwatch watch(record.times.total);
    refit(step, state, record);
    roll_out(step, state, record);
    compute_advantages(record);
    record.signals = compute_signals(step, record);
    update(step, record);
    double sets_differing = 0;
    for (const double count :
         parallel::all_gather_double(parts_.models.groups().data.communicator(),
                                     static_cast<double>(record.agreement.num_sets_differing))) {
      sets_differing += count;
    }
    record.agreement.num_sets_differing = static_cast<int64_t>(sets_differing);
  }
  record.gtp = parts_.models.policy_store().counters().since(before);
  return record;
}

}  // namespace grpo::rl
