#include "rl/run/run_checkpoint.h"

#include "parallel/checkpoint/checkpoint.h"
#include "rl/state/checkpoint_model.h"

namespace grpo::rl {

namespace {

// With the run's precision.
model::ModelConfig model_config_of(PolicyModels& models) {
  model::ModelConfig config = models.policy().config();
  config.dtype = models.policy_store().dtype();
  return config;
}

}  // namespace

parallel::CheckpointContent RunCheckpoint::content() const {
  parallel::CheckpointContent all;
  models_.add_to(all);
  parallel::add_owned_state(all, models_.policy_store(), optimizer_.state_arrays());
  parallel::sort_content(all);
  return all;
}

RunState RunCheckpoint::resume(const std::filesystem::path& folder) {
  run_.enter("resume", 0);
  const RunConfig& config = run_.config;
  RunState state = read_run_state(folder);
  if (state.algorithm != config.algorithm) {
    throw ConfigError(
        fmt::format("algorithm is {}, the checkpoint {} was made by {}; allowed: {}, or "
                    "warm_start.checkpoint to start from its "
                    "weights",
                    config.algorithm, folder.string(), state.algorithm, state.algorithm));
  }
  if (state.seed != config.seed()) {
    throw ConfigError(fmt::format("{}.seed is {}, the checkpoint {} was made with {}; allowed: {}",
                                  config.algorithm, config.seed(), folder.string(), state.seed,
                                  state.seed));
  }
  check_model_files(folder, model_config_of(models_), run_.config.policy.tokenizer.name);
  parallel::load_checkpoint(folder, content());
  models_.mark_weights_changed();
  if (refits(state)) models_.refit();
  optimizer_.set_num_steps(state.optimizer_steps);
  verdicts_.restore(state);
  if (!state.is_in_warm_start()) saved_step_ = state.step;
  return state;
}

// Not in a warm start: a run that is not interrupted refits only after it.
bool RunCheckpoint::refits(const RunState& state) const {
  return models_.generates() && !state.is_in_warm_start();
}

void RunCheckpoint::rank(int64_t step, const MetricSet& metrics) {
  const std::optional<std::string>& name = run_.config.checkpointing.metric_name;
  if (!name) return;
  const std::optional<double> value = metrics.get(*name);
  if (!value && run_.reports()) {
    run_.observer.on_warning(fmt::format(
        "checkpoint of step {}: the step has no {}, so that it ranks last", step, *name));
  }
  verdicts_.ranking.add(step, value);
}

void RunCheckpoint::save(int64_t step, RunState& state, const MetricSet& metrics,
                         const std::function<void()>& before_commit) {
  const CheckpointingConfig& config = run_.config.checkpointing;
  if (!config.enabled || saved_step_ == step) return;
  run_.enter("checkpointing", step);
  if (step > 0) rank(step, metrics);
  // The generation model takes the saved weights now, in a run that goes on as in one that resumes,
  // so that both count the same changed elements in the next step.
  if (refits(state)) state.pending_changed_elements += models_.refit().changed_elements;
  state.step = step;
  state.optimizer_steps = optimizer_.num_steps();
  verdicts_.save(state);
  const std::filesystem::path parent = checkpoint_parent(config, run_.config.logger.log_dir);
  // A warm start that is interrupted again has an earlier step_0, which must not go before the new
  // one is whole.
  if (step == 0 && run_.reports()) set_aside_checkpoints(parent, -1);
  parallel::save_checkpoint(parent / fmt::format("step_{}", step), content(),
                            {.step = step,
                             .state_json = state.to_json(),
                             .add_files =
                                 [&](const std::filesystem::path& folder) {
                                   write_model_files(folder, model_config_of(models_),
                                                     run_.config.policy.tokenizer.name);
                                   if (before_commit) before_commit();
                                 }},
                            models_.groups().world.communicator(), run_.allocator);
  if (run_.reports()) {
    remove_replaced_checkpoints(parent, step);
    remove_superfluous_checkpoints(parent, verdicts_.ranking, step);
  }
  saved_step_ = step;
}

void load_initial_weights(const std::filesystem::path& path, const std::filesystem::path& tokenizer,
                          PolicyModels& models) {
  const auto folder = checkpoint_at(path);
  if (!folder) {
    throw ConfigError(
        fmt::format("warm_start.checkpoint is {}: no finished checkpoint there; allowed: a folder "
                    "step_N with manifest.json, or a "
                    "folder of such folders",
                    path.string()));
  }
  const Communicator& everyone = models.groups().world.communicator();
  if (const auto damage = find_checkpoint_damage(*folder, everyone.rank(), everyone.size())) {
    throw DataError(fmt::format("warm_start.checkpoint {}: the checkpoint is damaged: {}",
                                path.string(), *damage));
  }
  check_model_files(*folder, model_config_of(models), tokenizer);
  parallel::CheckpointContent content;
  parallel::add_weights(content, "weights", models.policy_store());
  parallel::sort_content(content);
  parallel::load_checkpoint(*folder, content, parallel::Surplus::kIgnore);
  models.mark_weights_changed();
}

}  // namespace grpo::rl
