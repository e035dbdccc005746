#include "app/commands/train_command.h"

// grpo_train --config: loads the config, starts or joins the ranks, and runs the trainer on each.
#include <unistd.h>

#include <iostream>
#include <numeric>

#include "app/config/config_agreement.h"
#include "app/config/config_writer.h"
#include "app/config/yaml_config_reader.h"
#include "app/launch/host_memory.h"
#include "app/launch/rank_session.h"
#include "app/launch/stop_signals.h"
#include "app/output/run_lock.h"
#include "app/output/run_log.h"
#include "app/text/text_file.h"
#include "model/core/device_cuda.h"
#include "model/core/errors.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/rank_device.h"
#include "parallel/layout/mesh.h"
#include "rl/config/resolve_config.h"
#include "rl/models/model_source.h"
#include "rl/run/memory_plan.h"
#include "rl/run/memory_report.h"
#include "rl/run/run_inputs.h"
#include "rl/run/trainer.h"
#include "rl/state/checkpointing.h"
#include "rl/state/resume_point.h"

namespace grpo::app {

namespace {

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

// "" when this machine has what the config asks for, or the config asks for nothing.
std::string device_note(const rl::RunConfig& config) {
  if (config.parallel.device != "cuda") return "";
  try {
    check_cuda_device({DeviceKind::kCuda, 0});
  } catch (const CudaError& error) {
    return fmt::format("NOTE: a run on this machine is refused: parallel.device is cuda: {}\n",
                       error.what());
  }
  return "";
}

// The whole output is YAML: the resolved config, and the rest as comments.
void print_check(const rl::RunConfig& config, int world_size) {
  std::string text = config_to_yaml(config);
  std::string comments = config.parallel.mesh().to_string() +
                         rl::batch_arithmetic(config, world_size) + "\n" + check_memory(config) +
                         device_note(config);
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

// What keeps other runs out of this one's folders, on world rank 0.
struct FolderLocks {
  explicit FolderLocks(const rl::RunConfig& config)
      : log_dir("logger.log_dir", config.logger.log_dir) {
    const rl::CheckpointingConfig& checkpointing = config.checkpointing;
    if (checkpointing.enabled && !checkpointing.checkpoint_dir.empty()) {
      checkpoints.emplace("checkpointing.checkpoint_dir", checkpointing.checkpoint_dir);
    }
  }

  bool are_held() const { return log_dir.is_held() && (!checkpoints || checkpoints->is_held()); }

  RunLock log_dir;
  std::optional<RunLock> checkpoints;  // where they do not lie in log_dir
};

// Where a run starts: a checkpoint and its step, or fresh.
struct Start {
  rl::ResumePoint point;
  EarlierRun earlier;
  std::string message;
};

std::filesystem::path checkpoint_parent(const rl::RunConfig& config) {
  return rl::checkpoint_parent(config.checkpointing, config.logger.log_dir);
}

Start find_start(const std::optional<std::string>& resume, const rl::RunConfig& config,
                 Communicator& everyone) {
  Start start{.point = {},
              .earlier = {.overwrite = config.logger.overwrite, .continue_after = std::nullopt},
              .message = {}};
  if (!resume) return start;
  start.point = rl::find_resume_point(*resume, checkpoint_parent(config), everyone);
  if (!start.point.checkpoint) {
    start.earlier.continue_after = -1;
    start.message = fmt::format("--resume auto: no finished checkpoint in {}, starting fresh",
                                checkpoint_parent(config).string());
    return start;
  }
  // What was logged before the first step is logged anew.
  start.earlier.continue_after = start.point.step == 0 ? -1 : start.point.step;
  start.message = fmt::format("resuming from step {} of {}", start.point.step,
                              start.point.checkpoint->string());
  return start;
}

// A later --resume auto must not find the checkpoints of two runs.
void refuse_used_checkpoints(const rl::RunConfig& config, const Start& start) {
  if (!config.checkpointing.enabled || start.earlier.overwrite || start.earlier.continue_after)
    return;
  const auto found = parallel::finished_checkpoints(checkpoint_parent(config));
  if (found.empty()) return;
  throw ConfigError(fmt::format(
      "{} is of an earlier run; allowed: another checkpointing.checkpoint_dir, --resume auto "
      "to go on from it, or logger.overwrite=true to set it aside",
      found.back().string()));
}

// Once setup has succeeded everywhere: what an earlier run left and this one replaces goes away.
void take_over(const rl::RunConfig& config, const Start& start, RunFiles& files, Console& console) {
  if (config.checkpointing.enabled) {
    const int64_t last_step = start.point.checkpoint ? start.point.step : -1;
    const auto moved = rl::set_aside_checkpoints(checkpoint_parent(config), last_step);
    for (const std::string& line : moved) console.warning(line);
  }
  files.write_config(config_to_yaml(config));
}

std::string ending(const rl::RunOutcome& outcome, const rl::RunConfig& config, const Start& start) {
  const std::string best = outcome.best_checkpoint.empty()
                               ? ""
                               : fmt::format(", best checkpoint {}", outcome.best_checkpoint);
  const std::string done = fmt::format("{} of {} steps{}, results in {}", outcome.num_steps,
                                       outcome.max_num_steps, best, config.logger.log_dir);
  if (outcome.exit_code == ExitCode::kSavedAfterSignal) {
    return fmt::format("stopped by a signal after {}", done);
  }
  // The trainer has no other reason to end early without an error.
  if (outcome.exit_code == ExitCode::kOther) {
    return fmt::format(
        "stopped by a signal, without a checkpoint (checkpointing.enabled is false), after {}",
        done);
  }
  if (start.point.checkpoint && start.point.step >= outcome.max_num_steps) {
    return fmt::format("nothing is left to do: {} is of step {}, {}.max_num_steps is {}",
                       start.point.checkpoint->string(), start.point.step, config.algorithm,
                       config.max_num_steps());
  }
  if (outcome.exit_code == ExitCode::kGate) return fmt::format("a gate failed: {}", done);
  if (!outcome.early_stop.empty()) {
    return fmt::format("early stop: {}; {}", outcome.early_stop, done);
  }
  return fmt::format("done: {}", done);
}

// World rank 0: files and console around the trainer.
ExitCode train_on_first_rank(const rl::RunConfig& config, const Start& start,
                             Communicator& everyone, RankContext& context) {
  const parallel::RankDevice device = parallel::choose_device(
      config.parallel.device, context.environment.local_rank, context.world);
  RunFiles files(config.logger.log_dir, start.earlier);
  refuse_used_checkpoints(config, start);
  // mpirun gives its ranks a terminal even when its own output goes to a file.
  const bool is_terminal = context.environment.launcher != "mpirun" && isatty(STDOUT_FILENO) == 1;
  Console console(std::cout, is_terminal);
  const int world_size = context.world.size();
  console.message(fmt::format("layout of {} rank{}:\n{}{}", world_size, world_size == 1 ? "" : "s",
                              config.parallel.mesh().to_string(),
                              rl::batch_arithmetic(config, world_size)));
  for (const std::string& line : start.point.warnings) console.warning(line);
  for (const std::string& line : files.warnings()) console.warning(line);
  if (!start.message.empty()) console.message(start.message);
  console.message("device: " + device.description);
  RunLog log(files, console, config.max_num_steps(), config.logger);
  rl::Trainer trainer(config, context.world, device.device, log, context.stop_requested,
                      start.point.checkpoint);
  everyone.barrier();
  if (trainer.has_steps_left()) take_over(config, start, files, console);
  const rl::RunOutcome outcome = trainer.run();
  console.gate_summary(outcome.gates);
  console.message(ending(outcome, config, start));
  return outcome.exit_code;
}

ExitCode train_on_other_rank(const rl::RunConfig& config, const Start& start,
                             Communicator& everyone, RankContext& context) {
  SilentObserver silent;
  const parallel::RankDevice device = parallel::choose_device(
      config.parallel.device, context.environment.local_rank, context.world);
  rl::Trainer trainer(config, context.world, device.device, silent, context.stop_requested,
                      start.point.checkpoint);
  everyone.barrier();
  return trainer.run().exit_code;
}

ExitCode train_on_rank(const rl::RunConfig& config, const std::optional<std::string>& resume,
                       RankContext& context) {
  std::optional<FolderLocks> locks;
  if (context.world.rank() == 0) locks.emplace(config);
  std::vector<int> ranks(static_cast<size_t>(context.world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto everyone = context.world.make_group(ranks, "start of run");
  refuse_different_configs(config_to_yaml(config), *everyone);
  Start start = find_start(resume, config, *everyone);
  if (locks && !locks->are_held()) {
    start.point.warnings.emplace_back(
        "the file system has no locks: nothing keeps a second run out of this one's folders");
  }
  return context.world.rank() == 0 ? train_on_first_rank(config, start, *everyone, context)
                                   : train_on_other_rank(config, start, *everyone, context);
}

}  // namespace

int run_train(const TrainOptions& options) {
  if (!options.check_only) catch_stop_signals();
  ConfigOrigins origins;
  rl::RunConfig config = load_run_config(options.config_path, options.overrides, &origins);
  const RankPlan plan = plan_ranks(options.num_local_ranks, config.parallel, config.logger.log_dir);
  const bool is_first = !plan.environment || plan.environment->rank == 0;
  with_origins(origins, [&] { rl::resolve(config, plan.world_size); });
  if (options.check_only) {
    with_origins(origins, [&] { rl::check_run_inputs(config); });
    if (is_first) print_check(config, plan.world_size);
    return static_cast<int>(ExitCode::kDone);
  }
  if (is_first) check_writable("logger.log_dir", config.logger.log_dir);
  if (!plan.environment) {
    refuse_used_log_dir(config.logger.log_dir,
                        config.logger.overwrite || options.resume.has_value());
    announce_local_ranks(options, config, plan.world_size);
  }
  return run_ranks(plan, [&](RankContext& context) {
    return with_origins(origins, [&] { return train_on_rank(config, options.resume, context); });
  });
}

}  // namespace grpo::app
