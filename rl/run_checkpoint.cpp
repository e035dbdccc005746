#include "rl/run_checkpoint.h"

#include "parallel/checkpoint.h"

namespace grpo::rl {

parallel::CheckpointContent RunCheckpoint::content() const {
  parallel::CheckpointContent all;
  models_.add_to(all);
  parallel::add_owned_state(all, models_.policy_store(), optimizer_.state_arrays());
  parallel::sort_content(all);
  return all;
}

model::ModelConfig RunCheckpoint::model_config() const {
  model::ModelConfig config = models_.policy().config();
  config.dtype = models_.policy_store().dtype();
  return config;
}

RunState RunCheckpoint::resume(const std::filesystem::path& folder) {
  run_.enter("resume", 0);
  const parallel::CheckpointManifest manifest = parallel::read_manifest(folder);
  RunState state = RunState::from_json(manifest.state_json, (folder / "manifest.json").string());
  if (state.seed != run_.config.grpo.seed) {
    throw ConfigError(
        fmt::format("grpo.seed is {}, the checkpoint {} was made with {}; allowed: {}",
                    run_.config.grpo.seed, folder.string(), state.seed, state.seed));
  }
  check_model_files(folder, model_config(), run_.config.policy.tokenizer.name);
  parallel::load_checkpoint(folder, content());
  models_.mark_weights_changed();
  models_.refit();
  optimizer_.set_num_steps(state.optimizer_steps);
  gates_.restore(state.gates_json);
  saved_step_ = state.step;
  return state;
}

void RunCheckpoint::save(int64_t step, RunState& state,
                         const std::function<void()>& before_commit) {
  if (!run_.config.checkpointing.enabled || saved_step_ == step) return;
  run_.enter("checkpointing", step);
  // The generation model takes the saved weights now, in a run that goes on as in one that resumes,
  // so that both count the same changed elements in the next step.
  state.pending_changed_elements = models_.refit().changed_elements;
  state.step = step;
  state.optimizer_steps = optimizer_.num_steps();
  state.gates_json = gates_.state_json();
  const std::filesystem::path parent =
      checkpoint_parent(run_.config.checkpointing, run_.config.logger.log_dir);
  Communicator& everyone = models_.groups().world.communicator();
  parallel::save_checkpoint(parent / fmt::format("step_{}", step), content(),
                            {.step = step,
                             .state_json = state.to_json(),
                             .add_files =
                                 [&](const std::filesystem::path& folder) {
                                   write_model_files(folder, model_config(),
                                                     run_.config.policy.tokenizer.name);
                                   if (before_commit) before_commit();
                                 }},
                            everyone, run_.allocator);
  if (run_.reports()) remove_old_checkpoints(parent, run_.config.checkpointing.keep_last);
  saved_step_ = step;
}

}  // namespace grpo::rl
