// grpo_train --config: loads the config, starts or joins the ranks, and runs the trainer on each.
#include <unistd.h>

#include <iostream>

#include "app/commands.h"
#include "app/config_writer.h"
#include "app/rank_session.h"
#include "app/run_log.h"
#include "app/yaml_config_reader.h"
#include "model/core/errors.h"
#include "parallel/mesh.h"
#include "rl/trainer.h"

namespace grpo::app {

namespace {

parallel::Mesh mesh_of(const rl::RunConfig& config) {
  return {static_cast<int>(config.parallel.tensor), static_cast<int>(config.parallel.gtp_remat),
          static_cast<int>(config.parallel.data)};
}

// The whole output is YAML: the resolved config, and the rest as comments.
void print_check(const rl::RunConfig& config, int world_size) {
  std::string text = config_to_yaml(config);
  std::string comments =
      mesh_of(config).to_string() + rl::batch_arithmetic(config, world_size) + "\n";
  for (size_t start = 0; start < comments.size();) {
    const size_t end = comments.find('\n', start);
    text += "# " + comments.substr(start, end - start) + "\n";
    start = end + 1;
  }
  std::cout << text << std::flush;
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

// World rank 0: files and console around the trainer.
ExitCode train_on_first_rank(const rl::RunConfig& config, RankContext& context) {
  RunFiles files(config.logger.log_dir, config.logger.overwrite);
  files.write_config(config_to_yaml(config));
  Console console(std::cout, isatty(STDOUT_FILENO) == 1);
  const int world_size = context.world.size();
  console.message(fmt::format("layout of {} rank{}:\n{}{}", world_size, world_size == 1 ? "" : "s",
                              mesh_of(config).to_string(),
                              rl::batch_arithmetic(config, world_size)));
  RunLog log(files, console, config.grpo.max_num_steps, config.logger.num_samples_to_print);
  rl::Trainer trainer(config, context.world, log);
  const rl::RunOutcome outcome = trainer.run(context.stop_requested);
  console.gate_summary(outcome.gates);
  console.message(ending(outcome, config));
  return outcome.exit_code;
}

ExitCode train_on_other_rank(const rl::RunConfig& config, RankContext& context) {
  SilentObserver silent;
  rl::Trainer trainer(config, context.world, silent);
  return trainer.run(context.stop_requested).exit_code;
}

}  // namespace

int run_train(const TrainOptions& options) {
  rl::RunConfig config = load_run_config(options.config_path, options.overrides);
  const RankPlan plan = plan_ranks(options.num_local_ranks, config.parallel, config.logger.log_dir);
  const bool is_first = !plan.environment || plan.environment->rank == 0;
  rl::resolve(config, plan.world_size);
  const rl::GateKeeper gates_name_known_metrics(config.gates, rl::known_metric_names(config));
  if (options.check_only) {
    if (is_first) print_check(config, plan.world_size);
    return static_cast<int>(ExitCode::kDone);
  }
  if (!plan.environment) {
    refuse_used_log_dir(config.logger.log_dir, config.logger.overwrite);
    announce_local_ranks(options, config, plan.world_size);
  }
  return run_ranks(plan, [&](RankContext& context) {
    return context.world.rank() == 0 ? train_on_first_rank(config, context)
                                     : train_on_other_rank(config, context);
  });
}

}  // namespace grpo::app
