// grpo_train --config: loads the config, starts or joins the ranks, and runs the trainer on each.
#include <unistd.h>

#include <iostream>

#include "app/commands.h"
#include "app/config_writer.h"
#include "app/host_memory.h"
#include "app/rank_session.h"
#include "app/run_log.h"
#include "app/stop_signals.h"
#include "app/text_file.h"
#include "app/yaml_config_reader.h"
#include "model/core/errors.h"
#include "parallel/checkpoint.h"
#include "parallel/mesh.h"
#include "parallel/rank_device.h"
#include "rl/checkpointing.h"
#include "rl/memory_plan.h"
#include "rl/memory_report.h"
#include "rl/model_source.h"
#include "rl/run_inputs.h"
#include "rl/trainer.h"

namespace grpo::app {

namespace {

parallel::Mesh mesh_of(const rl::RunConfig& config) {
  return {static_cast<int>(config.parallel.tensor), static_cast<int>(config.parallel.gtp_remat),
          static_cast<int>(config.parallel.data)};
}

// Prompts count as long as the config lets them be: the data is not read.
std::string check_memory(const rl::RunConfig& config) {
  const std::unique_ptr<model::Tokenizer> tokenizer =
      model::load_tokenizer(config.policy.tokenizer.name);
  const rl::ModelSource source = rl::open_model(config.policy, *tokenizer);
  const Device device =
      config.parallel.device == "cuda" ? Device{DeviceKind::kCuda, 0} : Device::cpu();
  const rl::MemoryPlan plan = rl::plan_memory(config, source.config, std::nullopt, device);
  std::string text = rl::plan_table(plan) + "\n";
  const std::string warning = memory_warning(plan);
  if (!warning.empty()) text += "WARNING: " + warning + "\n";
  return text;
}

// The whole output is YAML: the resolved config, and the rest as comments.
void print_check(const rl::RunConfig& config, int world_size) {
  std::string text = config_to_yaml(config);
  std::string comments = mesh_of(config).to_string() + rl::batch_arithmetic(config, world_size) +
                         "\n" + check_memory(config);
  for (size_t start = 0; start < comments.size();) {
    const size_t end = comments.find('\n', start);
    text += "# " + comments.substr(start, end - start) + "\n";
    start = end + 1;
  }
  write_standard_output(text);
}

void announce_local_ranks(const TrainOptions& options, const rl::RunConfig& config,
                          int world_size) {
  const std::string reason =
      options.num_local_ranks
          ? "--nproc"
          : fmt::format(
                "no launcher's environment and no --nproc: parallel.tensor {} x "
                "parallel.gtp_remat {} x parallel.data {}",
                config.parallel.tensor, config.parallel.gtp_remat, config.parallel.data);
  Console(std::cout, false)
      .message(fmt::format("starting {} local rank{} ({})", world_size, world_size == 1 ? "" : "s",
                           reason));
}

std::string ending(const rl::RunOutcome& outcome, const rl::RunConfig& config) {
  const std::string done = fmt::format("{} of {} steps, results in {}", outcome.num_steps,
                                       config.grpo.max_num_steps, config.logger.log_dir);
  if (outcome.exit_code == ExitCode::kSavedAfterSignal) {
    return fmt::format("stopped by a signal after {}", done);
  }
  // The trainer has no other reason to end early without an error.
  if (outcome.exit_code == ExitCode::kOther) {
    return fmt::format("stopped by a signal, without a checkpoint, after {}", done);
  }
  if (outcome.exit_code == ExitCode::kGate) return fmt::format("a gate failed: {}", done);
  return fmt::format("done: {}", done);
}

// Where a run starts: a checkpoint and its step, or fresh.
struct Start {
  std::optional<std::filesystem::path> checkpoint;
  EarlierRun earlier;
  std::string message;
};

Start find_start(const std::optional<std::string>& resume, const rl::RunConfig& config) {
  Start start{.checkpoint = std::nullopt,
              .earlier = {.overwrite = config.logger.overwrite, .continue_after = std::nullopt},
              .message = {}};
  if (!resume) return start;
  const std::filesystem::path parent =
      rl::checkpoint_parent(config.checkpointing, config.logger.log_dir);
  start.checkpoint = rl::find_checkpoint(*resume, parent);
  if (!start.checkpoint) {
    start.earlier.continue_after = -1;
    start.message = fmt::format("--resume auto: no finished checkpoint in {}, starting fresh",
                                parent.string());
    return start;
  }
  const int64_t step = parallel::read_manifest(*start.checkpoint).step;
  start.earlier.continue_after = step;
  start.message = fmt::format("resuming from step {} ({})", step, start.checkpoint->string());
  return start;
}

// World rank 0: files and console around the trainer.
ExitCode train_on_first_rank(const rl::RunConfig& config, const Start& start, RankContext& context) {
  const parallel::RankDevice device =
      parallel::choose_device(config.parallel.device, context.environment.local_rank, context.world);
  RunFiles files(config.logger.log_dir, start.earlier);
  files.write_config(config_to_yaml(config));
  // mpirun gives its ranks a terminal even when its own output goes to a file.
  const bool is_terminal = context.environment.launcher != "mpirun" && isatty(STDOUT_FILENO) == 1;
  Console console(std::cout, is_terminal);
  const int world_size = context.world.size();
  console.message(fmt::format("layout of {} rank{}:\n{}{}", world_size, world_size == 1 ? "" : "s",
                              mesh_of(config).to_string(),
                              rl::batch_arithmetic(config, world_size)));
  if (!start.message.empty()) console.message(start.message);
  console.message("device: " + device.description);
  RunLog log(files, console, config.grpo.max_num_steps, config.logger);
  rl::Trainer trainer(config, context.world, device.device, log, context.stop_requested, start.checkpoint);
  const rl::RunOutcome outcome = trainer.run();
  console.gate_summary(outcome.gates);
  console.message(ending(outcome, config));
  return outcome.exit_code;
}

ExitCode train_on_other_rank(const rl::RunConfig& config, const Start& start, RankContext& context) {
  SilentObserver silent;
  const parallel::RankDevice device =
      parallel::choose_device(config.parallel.device, context.environment.local_rank, context.world);
  rl::Trainer trainer(config, context.world, device.device, silent, context.stop_requested, start.checkpoint);
  return trainer.run().exit_code;
}

}  // namespace

int run_train(const TrainOptions& options) {
  if (!options.check_only) catch_stop_signals();
  KeyPlaces places;
  rl::RunConfig config = load_run_config(options.config_path, options.overrides, &places);
  const RankPlan plan = plan_ranks(options.num_local_ranks, config.parallel, config.logger.log_dir);
  const bool is_first = !plan.environment || plan.environment->rank == 0;
  with_places(places, [&] { rl::resolve(config, plan.world_size); });
  if (options.check_only) {
    with_places(places, [&] { rl::check_run_inputs(config); });
    if (is_first) print_check(config, plan.world_size);
    return static_cast<int>(ExitCode::kDone);
  }
  const Start start = find_start(options.resume, config);
  if (!plan.environment) {
    refuse_used_log_dir(config.logger.log_dir, config.logger.overwrite || options.resume.has_value());
    announce_local_ranks(options, config, plan.world_size);
  }
  return run_ranks(plan, [&](RankContext& context) {
    return with_places(places, [&] {
      return context.world.rank() == 0 ? train_on_first_rank(config, start, context)
                                       : train_on_other_rank(config, start, context);
    });
  });
}

}  // namespace grpo::app
