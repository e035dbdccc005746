#include "rl/run/trainer.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "model/core/config_key_error.h"
#include "parallel/comm/host_collectives.h"
#include "rl/loop/grpo_algorithm.h"
#include "rl/loop/sft_algorithm.h"
#include "rl/loop/stopwatch.h"
#include "rl/loop/warm_start.h"
#include "rl/models/exactness_probe.h"
#include "rl/models/model_source.h"
#include "rl/run/run_checkpoint.h"
#include "rl/run/run_inputs.h"
#include "rl/run/run_memory.h"
#include "rl/run/run_verdicts.h"
#include "rl/run/weights_report.h"

namespace grpo::rl {

struct Trainer::Impl {
  Impl(const RunConfig& config, parallel::World& world, Device device, RunObserver& observer,
       const std::atomic<bool>& stop_requested,
       const std::optional<std::filesystem::path>& resume_from);

  void set_up_models(const std::optional<std::filesystem::path>& resume_from);
  void announce_policy(const ModelSource& source, bool resumes);
  void announce_fault();
  void check_exactness();
  // From its beginning, or from where it stood in a checkpoint. Ends early on all ranks at a
  // signal: then `state` says how far it came.
  void run_warm_start(const std::vector<int32_t>& stops,
                      const std::optional<std::filesystem::path>& resume_from);
  void make_optimizer();
  bool is_stop_requested() { return parallel::any_rank(everyone(), run.stop_requested.load()); }
  std::unique_ptr<Algorithm> make_algorithm(const std::vector<int32_t>& stops);
  void report_setup();
  void validate_if_due(int64_t step, MetricSet& metrics);
  bool gates_stop(int64_t step, const MetricSet& metrics);
  bool stops_early(int64_t step, const MetricSet& metrics);
  bool save(int64_t step, MetricSet& metrics);
  // Runs and reports one step; true when it is the last.
  bool run_step(int64_t step);
  // At the boundary after step `step`; true when a checkpoint holds it.
  bool save_after_signal(int64_t step);
  std::string best_checkpoint() const;
  Communicator& everyone() { return models->groups().world.communicator(); }

  RunContext run;
  std::unique_ptr<model::Tokenizer> tokenizer;
  RunData data;
  RewardSet rewards;
  RunVerdicts verdicts;
  std::optional<RunMemory> memory;
  std::unique_ptr<PolicyModels> models;
  std::optional<Optimizer> optimizer;
  std::optional<RunCheckpoint> checkpoint;
  std::unique_ptr<Algorithm> algorithm;
  RunState state;
  MetricSet last_metrics;  // of the step before
  double setup_seconds = 0;
  double model_seconds = 0;
  double warm_start_seconds = 0;
};

Trainer::Impl::Impl(const RunConfig& config, parallel::World& world, Device device,
                    RunObserver& observer, const std::atomic<bool>& stop_requested,
                    const std::optional<std::filesystem::path>& resume_from)
    : run(config, world, device, observer, stop_requested),
      tokenizer(open_tokenizer(config.policy)),
      data(load_data(config, *tokenizer)),
      rewards(config.env.rewards),
      verdicts(config) {
  const Stopwatch watch(setup_seconds);
  run.enter("setup", 0);
  state.algorithm = config.algorithm;
  state.seed = config.seed();
  set_up_models(resume_from);
}

void Trainer::Impl::set_up_models(const std::optional<std::filesystem::path>& resume_from) {
  const parallel::DeviceFailureGuard guard(*run.attachment);
  std::vector<int32_t> stops;
  const WarmStartConfig& warm = run.config.warm_start;
  {
    const Stopwatch watch(model_seconds);
    const ModelSource source = open_model(run.config.policy, *tokenizer);
    stops = stop_tokens(run.config.policy.generation, source.config, tokenizer.get());
    check_supervised_data(run.config, data, stops);
    memory.emplace(run, source.config, data);
    models = std::make_unique<PolicyModels>(run.config, source, run.world, run.allocator);
    announce_policy(source, resume_from.has_value());
    announce_fault();
    check_exactness();
    if (!warm.checkpoint.empty() && !resume_from) {
      load_initial_weights(warm.checkpoint, run.config.policy.tokenizer.name, *models);
    }
  }
  const bool was_in_warm_start = resume_from && read_run_state(*resume_from).is_in_warm_start();
  if (was_in_warm_start || (warm.num_steps > 0 && !resume_from)) run_warm_start(stops, resume_from);
  run.enter("setup", 0);
  if (!state.is_in_warm_start()) {
    if (run.config.needs_reference()) models->take_reference();
    make_optimizer();
    if (resume_from && !was_in_warm_start) state = checkpoint->resume(*resume_from);
  }
  algorithm = make_algorithm(stops);
}

void Trainer::Impl::make_optimizer() {
  optimizer.emplace(run.config.policy.optimizer, models->policy_store(), run.allocator);
  checkpoint.emplace(run, *models, *optimizer, verdicts);
}

std::unique_ptr<Algorithm> Trainer::Impl::make_algorithm(const std::vector<int32_t>& stops) {
  if (!run.config.is_sft()) {
    return std::make_unique<GrpoAlgorithm>(run,
                                           GrpoStep::Parts{.tokenizer = *tokenizer,
                                                           .dataset = data.train,
                                                           .rewards = rewards,
                                                           .models = *models,
                                                           .optimizer = *optimizer,
                                                           .stop_token_ids = stops},
                                           data.validation);
  }
  return std::make_unique<SftAlgorithm>(run, SftAlgorithm::Parts{.dataset = data.train,
                                                                 .validation = data.validation,
                                                                 .models = *models,
                                                                 .optimizer = *optimizer,
                                                                 .end_token = stops.front()});
}

void Trainer::Impl::announce_policy(const ModelSource& source, bool resumes) {
  if (!run.reports()) return;
  const PolicyConfig& policy = run.config.policy;
  if (!run.attachment->description().empty()) {
    run.observer.on_message(fmt::format(
        "GPUs are connected by {}: gathers and messages; sums are added in rank order by an "
        "operator of this program",
        run.attachment->description()));
  }
  run.observer.on_message(
      fmt::format("model {}: {} parameters, {} layers, vocabulary {}, {}", policy.model_name,
                  num_elements(models->policy_store().specs()), source.config.num_layers,
                  source.config.vocab_size, dtype_name(models->policy_store().dtype())));
  if (source.weights == nullptr && !resumes && run.config.warm_start.checkpoint.empty()) {
    run.observer.on_warning(
        fmt::format("policy.model_name is '{}': the weights are RANDOM, drawn from seed {}",
                    policy.model_name, run.config.seed()));
  }
}

void Trainer::Impl::announce_fault() {
  const NumericsConfig& numerics = run.config.numerics;
  const generation::InjectedFault fault = numerics.fault();
  if (!run.reports() || fault == generation::InjectedFault::kNone) return;
  const generation::GenerationConfig& g = run.config.policy.generation;
  std::string idle;
  if (fault == generation::InjectedFault::kTemperatureOnLogprobs && g.temperature == 1.0) {
    idle = " (which changes nothing: policy.generation.temperature is 1)";
  }
  if (fault == generation::InjectedFault::kTopPOneSide && g.top_k == 0 && g.top_p == 1.0) {
    idle =
        " (which changes nothing: policy.generation.top_k is 0 and policy.generation.top_p is 1)";
  }
  run.observer.on_warning(
      fmt::format("A FAULT IS INJECTED ON PURPOSE: numerics.inject_fault is {}: {}{}. This run "
                  "shows what the exactness check notices; its results are good for nothing else",
                  numerics.inject_fault, generation::describe(fault), idle));
}

void Trainer::Impl::check_exactness() {
  double seconds = 0;
  int64_t num_shapes = 0;
  {
    const Stopwatch watch(seconds);
    num_shapes = probe_exactness(run.config, *models, run.ctx);
  }
  if (num_shapes == 0 || !run.reports()) return;
  run.observer.on_message(
      fmt::format("exact numerics: {} product shapes give a row the same bits among any number of "
                  "rows ({:.0f} ms)",
                  num_shapes, 1000.0 * seconds));
}

void Trainer::Impl::run_warm_start(const std::vector<int32_t>& stops,
                                   const std::optional<std::filesystem::path>& resume_from) {
  const Stopwatch watch(warm_start_seconds);
  const int64_t num_steps = run.config.warm_start.num_steps;
  run.enter("warm_start", 0);
  make_optimizer();
  int64_t num_done = 0;
  if (resume_from) {
    state = checkpoint->resume(*resume_from);
    num_done = *std::exchange(state.num_warm_start_steps, std::nullopt);
    if (const int64_t least = std::max<int64_t>(1, num_done); num_steps < least) {
      throw ConfigKeyError("warm_start.num_steps",
                           fmt::format("is {}, the checkpoint {} was saved after {} steps of the "
                                       "warm start; allowed: at least {}",
                                       num_steps, resume_from->string(), num_done, least));
    }
    if (run.reports()) {
      run.observer.on_message(
          fmt::format("the warm start goes on after {} of {} steps", num_done, num_steps));
    }
    run.enter("warm_start", 0);
  }
  num_done = naming_culprit(run, models->policy_store(), [&] {
    return warm_start(run.config,
                      {.dataset = data.train,
                       .end_token = stops.front(),
                       .policy = models->policy(),
                       .store = models->policy_store(),
                       .optimizer = *optimizer},
                      num_done, run.reports() ? &run.observer : nullptr, run.stop_requested,
                      run.ctx);
  });
  models->policy_store().drop_idle_buffers();
  if (num_done < num_steps) {
    state.num_warm_start_steps = num_done;
    return;
  }
  checkpoint.reset();
  optimizer.reset();
}

// Step 0, which is reported and nothing else: gates, early stop and checkpoints look at trained
// steps.
void Trainer::Impl::report_setup() {
  if (run.reports()) run.observer.on_start(algorithm->num_steps());
  if (state.step > 0) return;
  MetricSet metrics;
  metrics.set("timing/setup/total_setup_time", setup_seconds);
  metrics.set("timing/setup/policy_init", model_seconds);
  metrics.set("timing/setup/warm_start", warm_start_seconds);
  validate_if_due(0, metrics);
  if (run.reports()) run.observer.on_step(0, metrics);
}

void Trainer::Impl::validate_if_due(int64_t step, MetricSet& metrics) {
  const ValidationPeriods& periods = run.config.validation_periods();
  if (data.validation.empty() || !periods.is_due(step, algorithm->num_steps())) return;
  naming_culprit(run, models->policy_store(), [&] { algorithm->validate(step, state, metrics); });
}

// Gates see rank 0's values (times and memory differ between ranks); all ranks follow its verdict.
bool Trainer::Impl::gates_stop(int64_t step, const MetricSet& metrics) {
  bool stops = false;
  if (run.reports()) {
    for (const GateTrip& trip : verdicts.gates.check(step, metrics)) {
      run.observer.on_warning(trip.message);
      stops = stops || verdicts.gates.gates()[trip.gate].action == "stop";
    }
  }
  return parallel::any_rank(everyone(), stops);
}

// Like gates, by rank 0's values.
bool Trainer::Impl::stops_early(int64_t step, const MetricSet& metrics) {
  if (run.reports()) verdicts.early_stop.observe(step, metrics);
  return parallel::any_rank(everyone(), verdicts.early_stop.is_due());
}

bool Trainer::Impl::run_step(int64_t step) {
  MetricSet metrics;
  naming_culprit(run, models->policy_store(), [&] { algorithm->train(step, state, metrics); });
  validate_if_due(step, metrics);
  memory->add_metrics(metrics);
  last_metrics = metrics;
  bool ends = gates_stop(step, metrics) || step == algorithm->num_steps();
  ends = stops_early(step, metrics) || ends;
  if (run.config.checkpointing.enabled &&
      (ends || step % run.config.checkpointing.save_period == 0)) {
    ends = save(step, metrics) || ends;
  } else if (run.reports()) {
    run.observer.on_step(step, metrics);
  }
  return ends;
}

// The step is reported just before its checkpoint commits, with what it cost, so that no checkpoint
// is without its step's line; where saving fails, before the run ends. True when a gate stops.
bool Trainer::Impl::save(int64_t step, MetricSet& metrics) {
  const auto start = std::chrono::steady_clock::now();
  MetricSet saving;
  bool is_reported = !run.reports();
  const auto report_once = [&] {
    if (!std::exchange(is_reported, true)) run.observer.on_step(step, metrics);
  };
  try {
    checkpoint->save(step, state, last_metrics, [&] {
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      saving.set("timing/train/checkpointing", seconds.count());
      metrics.set("timing/train/checkpointing", seconds.count());
      report_once();
    });
  } catch (const Error&) {
    report_once();
    throw;
  }
  return gates_stop(step, saving);
}

bool Trainer::Impl::save_after_signal(int64_t step) {
  if (!run.config.checkpointing.enabled) return false;
  checkpoint->save(step, state, last_metrics);
  if (state.is_in_warm_start() && run.reports()) {
    run.observer.on_message(fmt::format("the warm start is saved after {} of {} steps",
                                        *state.num_warm_start_steps,
                                        run.config.warm_start.num_steps));
  }
  return true;
}

std::string Trainer::Impl::best_checkpoint() const {
  const auto best = verdicts.ranking.best_first();
  if (best.empty()) return "";
  return fmt::format("step_{} ({} {})", best.front().first, *run.config.checkpointing.metric_name,
                     best.front().second);
}

Trainer::Trainer(const RunConfig& config, parallel::World& world, Device device,
                 RunObserver& observer, const std::atomic<bool>& stop_requested,
                 const std::optional<std::filesystem::path>& resume_from)
    : impl_(std::make_unique<Impl>(config, world, device, observer, stop_requested, resume_from)) {}

Trainer::~Trainer() = default;

bool Trainer::has_steps_left() const {
  return impl_->state.step < impl_->algorithm->num_steps() && !impl_->verdicts.early_stop.is_due();
}

RunOutcome Trainer::run() {
  Impl& impl = *impl_;
  const parallel::DeviceFailureGuard guard(*impl.run.attachment);
  // Else there is nothing to report yet, and a validation would take its time.
  if (!impl.is_stop_requested()) impl.report_setup();
  RunOutcome outcome{.exit_code = ExitCode::kDone,
                     .num_steps = impl.state.step,
                     .max_num_steps = impl.algorithm->num_steps(),
                     .early_stop = {},
                     .best_checkpoint = {},
                     .gates = {}};
  bool ends = !has_steps_left();
  for (int64_t step = impl.state.step + 1; step <= outcome.max_num_steps && !ends; ++step) {
    if (impl.is_stop_requested()) {
      const bool saves = impl.save_after_signal(outcome.num_steps);
      outcome.exit_code = saves ? ExitCode::kSavedAfterSignal : ExitCode::kOther;
      break;
    }
    ends = impl.run_step(step);
    outcome.num_steps = step;
  }
  impl.memory->compare(impl.everyone());
  outcome.gates = impl.verdicts.gates.summary();
  if (impl.verdicts.early_stop.is_due()) outcome.early_stop = impl.verdicts.early_stop.message();
  outcome.best_checkpoint = impl.best_checkpoint();
  const bool is_interrupted = outcome.exit_code != ExitCode::kDone;
  const bool failed = parallel::any_rank(impl.everyone(), impl.verdicts.gates.failed());
  if (failed && !is_interrupted) outcome.exit_code = ExitCode::kGate;
  return outcome;
}

}  // namespace grpo::rl
