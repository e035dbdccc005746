#include "rl/trainer.h"

#include <chrono>
#include <optional>
#include <utility>

#include "parallel/host_collectives.h"
#include "rl/grpo_step.h"
#include "rl/memory_plan.h"
#include "rl/model_source.h"
#include "rl/run_checkpoint.h"
#include "rl/run_inputs.h"
#include "rl/stopwatch.h"
#include "rl/warm_start.h"
#include "rl/weights_report.h"

namespace grpo::rl {

struct Trainer::Impl {
  Impl(const RunConfig& config, parallel::World& world, Device device, RunObserver& observer,
       const std::atomic<bool>& stop_requested,
       const std::optional<std::filesystem::path>& resume_from);

  void set_up_models(const std::optional<std::filesystem::path>& resume_from);
  void plan_memory(const model::ModelConfig& model);
  const RankMemoryPlan& own_plan() const {
    return memory_plan.ranks[static_cast<size_t>(run.world.rank())];
  }
  void compare_memory();
  void announce_policy(const ModelSource& source, bool resumes);
  void run_warm_start(const std::vector<int32_t>& stops);
  void report_setup();
  void report(int64_t step, const StepRecord& record, const MetricSet& metrics);
  bool gates_stop(int64_t step, const MetricSet& metrics);
  // Runs and reports one step; true when it is the last.
  bool save(int64_t step, const StepRecord& record, MetricSet& metrics);
  bool run_step(int64_t step);

  RunContext run;
  std::unique_ptr<model::Tokenizer> tokenizer;
  std::optional<PromptDataset> dataset;
  RewardSet rewards;
  GateKeeper gates;
  MemoryPlan memory_plan{.device = Device::cpu(), .ranks = {}};
  std::unique_ptr<PolicyModels> models;
  std::optional<Optimizer> optimizer;
  std::optional<RunCheckpoint> checkpoint;
  std::optional<GrpoStep> step_runner;
  RunState state;
  double setup_seconds = 0;
  double model_seconds = 0;
  double warm_start_seconds = 0;
};

Trainer::Impl::Impl(const RunConfig& config, parallel::World& world, Device device,
                    RunObserver& observer, const std::atomic<bool>& stop_requested,
                    const std::optional<std::filesystem::path>& resume_from)
    : run(config, world, device, observer, stop_requested),
      tokenizer(open_tokenizer(config.policy)),
      rewards(config.env.rewards),
      gates(config.gates, known_metric_names(config)) {
  const Stopwatch watch(setup_seconds);
  run.enter("setup", 0);
  dataset.emplace(limited_dataset(config), *tokenizer);
  state.seed = config.grpo.seed;
  set_up_models(resume_from);
}

void Trainer::Impl::set_up_models(const std::optional<std::filesystem::path>& resume_from) {
  std::vector<int32_t> stops;
  {
    const Stopwatch watch(model_seconds);
    const ModelSource source = open_model(run.config.policy, *tokenizer);
    stops = stop_tokens(run.config.policy.generation, source.config, tokenizer.get());
    plan_memory(source.config);
    models = std::make_unique<PolicyModels>(run.config, source, run.world, run.allocator);
    announce_policy(source, resume_from.has_value());
  }
  if (run.config.warm_start.num_steps > 0 && !resume_from) run_warm_start(stops);
  run.enter("setup", 0);
  if (run.config.needs_reference()) models->take_reference();
  optimizer.emplace(run.config.policy.optimizer, models->policy_store(), run.allocator);
  checkpoint.emplace(run, *models, *optimizer, gates);
  if (resume_from) state = checkpoint->resume(*resume_from);
  step_runner.emplace(run, GrpoStep::Parts{.tokenizer = *tokenizer,
                                           .dataset = *dataset,
                                           .rewards = rewards,
                                           .models = *models,
                                           .optimizer = *optimizer,
                                           .stop_token_ids = stops});
}

void Trainer::Impl::plan_memory(const model::ModelConfig& model) {
  memory_plan = rl::plan_memory(run.config, model, dataset->lengths(), run.ctx.device);
  if (run.reports()) run.observer.on_memory_plan(memory_plan);
  run.workspace.reserve(own_plan().workspace_bytes);
}

// Collective.
void Trainer::Impl::compare_memory() {
  const std::map<std::string, PhasePeak> peaks = run.allocator.peaks();
  MeasuredMemory measured;
  measured.ranks.resize(memory_plan.ranks.size());
  for (const PhasePlan& phase : own_plan().phases) {
    const auto found = peaks.find(phase.phase);
    const PhasePeak own = found == peaks.end() ? PhasePeak() : found->second;
    Communicator& everyone = models->groups().world.communicator();
    const auto bytes = parallel::all_gather_double(everyone, static_cast<double>(own.bytes));
    const auto used =
        parallel::all_gather_double(everyone, static_cast<double>(own.workspace.total()));
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      measured.ranks[rank].push_back(
          {static_cast<size_t>(bytes[rank]), static_cast<size_t>(used[rank])});
    }
  }
  if (run.reports()) run.observer.on_measured_memory(memory_plan, measured);
}

void Trainer::Impl::announce_policy(const ModelSource& source, bool resumes) {
  if (!run.reports()) return;
  const PolicyConfig& policy = run.config.policy;
  run.observer.on_message(
      fmt::format("model {}: {} parameters, {} layers, vocabulary {}, {}", policy.model_name,
                  num_elements(models->policy_store().specs()), source.config.num_layers,
                  source.config.vocab_size, dtype_name(models->policy_store().dtype())));
  if (source.weights == nullptr && !resumes) {
    run.observer.on_warning(
        fmt::format("policy.model_name is '{}': the weights are RANDOM, drawn from seed {}",
                    policy.model_name, run.config.grpo.seed));
  }
}

void Trainer::Impl::run_warm_start(const std::vector<int32_t>& stops) {
  const Stopwatch watch(warm_start_seconds);
  check_warm_start(run.config, *dataset, stops);
  run.enter("warm_start", 0);
  naming_culprit(run, models->policy_store(), [&] {
    return warm_start(run.config, *dataset, stops.front(), models->policy(), models->policy_store(),
                      run.reports() ? &run.observer : nullptr, run.stop_requested, run.ctx);
  });
  models->policy_store().drop_idle_buffers();
}

void Trainer::Impl::report_setup() {
  if (!run.reports() || state.step > 0) return;
  MetricSet metrics;
  metrics.set("timing/setup/total_setup_time", setup_seconds);
  metrics.set("timing/setup/policy_init", model_seconds);
  metrics.set("timing/setup/warm_start", warm_start_seconds);
  run.observer.on_step(0, metrics);
}

void Trainer::Impl::report(int64_t step, const StepRecord& record, const MetricSet& metrics) {
  if (!run.reports()) return;
  for (size_t i = 0; i < record.sequences.size(); ++i) {
    run.observer.on_sample(
        step, sample_json(record.sequences[i], dataset->example(record.sequences[i].example),
                          record.advantages.advantage[i]));
  }
  run.observer.on_step(step, metrics);
  const TokenAgreement& agreement = record.agreement;
  if (run.config.numerics.mode == "exact" &&
      agreement.num_mismatched + agreement.num_cuts_differing != 0) {
    run.observer.on_warning(
        fmt::format("exact mode: {} of {} log-probabilities and {} sampling cuts differ between "
                    "generation and training",
                    agreement.num_mismatched, agreement.num_checked, agreement.num_cuts_differing));
  }
}

// Gates see rank 0's values (times and memory differ between ranks); all ranks follow its verdict.
bool Trainer::Impl::gates_stop(int64_t step, const MetricSet& metrics) {
  bool stops = false;
  if (run.reports()) {
    for (const GateTrip& trip : gates.check(step, metrics)) {
      run.observer.on_warning(trip.message);
      stops = stops || gates.gates()[trip.gate].action == "stop";
    }
  }
  return parallel::any_rank(models->groups().world.communicator(), stops);
}

bool Trainer::Impl::run_step(int64_t step) {
  const StepRecord record =
      naming_culprit(run, models->policy_store(), [&] { return step_runner->run(step, state); });
  MetricSet metrics;
  add_rollout_metrics(metrics, record, rewards.names());
  add_training_metrics(metrics, record);
  add_system_metrics(metrics, record, run.world.size(), run.allocator, own_plan());
  bool ends = gates_stop(step, metrics) || step == run.config.grpo.max_num_steps;
  if (run.config.checkpointing.enabled &&
      (ends || step % run.config.checkpointing.save_period == 0)) {
    ends = save(step, record, metrics) || ends;
  } else {
    report(step, record, metrics);
  }
  return ends;
}

// The step is reported just before its checkpoint commits, with what it cost, so that no checkpoint
// is without its step's line; where saving fails, before the run ends. True when a gate stops.
bool Trainer::Impl::save(int64_t step, const StepRecord& record, MetricSet& metrics) {
  const auto start = std::chrono::steady_clock::now();
  MetricSet saving;
  bool is_reported = false;
  const auto report_once = [&] {
    if (!std::exchange(is_reported, true)) report(step, record, metrics);
  };
  try {
    checkpoint->save(step, state, [&] {
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

Trainer::Trainer(const RunConfig& config, parallel::World& world, Device device,
                 RunObserver& observer, const std::atomic<bool>& stop_requested,
                 const std::optional<std::filesystem::path>& resume_from)
    : impl_(std::make_unique<Impl>(config, world, device, observer, stop_requested, resume_from)) {}

Trainer::~Trainer() = default;

RunOutcome Trainer::run() {
  Impl& impl = *impl_;
  Communicator& everyone = impl.models->groups().world.communicator();
  impl.report_setup();
  RunOutcome outcome{.exit_code = ExitCode::kDone, .num_steps = impl.state.step, .gates = {}};
  for (int64_t step = impl.state.step + 1; step <= impl.run.config.grpo.max_num_steps; ++step) {
    if (parallel::any_rank(everyone, impl.run.stop_requested.load())) {
      const bool saves = impl.run.config.checkpointing.enabled && outcome.num_steps > 0;
      if (saves) impl.checkpoint->save(outcome.num_steps, impl.state);
      outcome.exit_code = saves ? ExitCode::kSavedAfterSignal : ExitCode::kOther;
      break;
    }
    const bool ends = impl.run_step(step);
    outcome.num_steps = step;
    if (ends) break;
  }
  impl.compare_memory();
  outcome.gates = impl.gates.summary();
  const bool is_interrupted = outcome.exit_code != ExitCode::kDone;
  if (parallel::any_rank(everyone, impl.gates.failed()) && !is_interrupted)
    outcome.exit_code = ExitCode::kGate;
  return outcome;
}

}  // namespace grpo::rl
