#include "rl/trainer.h"

#include <chrono>
#include <optional>
#include <utility>

#include "parallel/checkpoint.h"
#include "parallel/host_collectives.h"
#include "rl/advantage.h"
#include "rl/checkpointing.h"
#include "rl/model_source.h"
#include "rl/optimizer.h"
#include "rl/policy_models.h"
#include "rl/policy_update.h"
#include "rl/rollout.h"
#include "rl/sequence_scorer.h"
#include "rl/step_metrics.h"
#include "rl/warm_start.h"

namespace grpo::rl {

namespace {

// Adds the life of this object to a total.
class Stopwatch {
 public:
  explicit Stopwatch(double& total_seconds) : total_seconds_(total_seconds) {}
  ~Stopwatch() {
    total_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::vector<int32_t> stop_tokens(const generation::GenerationConfig& config,
                                 const model::ModelConfig& model,
                                 const model::Tokenizer& tokenizer) {
  std::vector<int32_t> stops = model.eos_token_ids;
  if (stops.empty() && tokenizer.eos_token_id()) stops.push_back(*tokenizer.eos_token_id());
  for (const int64_t id : config.stop_token_ids) {
    if (id >= model.vocab_size) {
      throw ConfigError(fmt::format(
          "policy.generation.stop_token_ids holds {}; allowed: ids below the vocabulary's {}", id,
          model.vocab_size));
    }
    stops.push_back(static_cast<int32_t>(id));
  }
  return stops;
}

parallel::GtpCounters operator-(const parallel::GtpCounters& a, const parallel::GtpCounters& b) {
  return {.gathers = a.gathers - b.gathers,
          .gathered_bytes = a.gathered_bytes - b.gathered_bytes,
          .reduce_scatters = a.reduce_scatters - b.reduce_scatters,
          .reduce_scattered_bytes = a.reduce_scattered_bytes - b.reduce_scattered_bytes};
}

}  // namespace

struct Trainer::Impl {
  Impl(const RunConfig& run_config, parallel::World& run_world, RunObserver& run_observer,
       const std::atomic<bool>& run_stop_requested, const std::optional<std::filesystem::path>& resume_from);

  void set_up_models(const std::optional<std::filesystem::path>& resume_from);
  void set_up_policy(const ModelSource& source);
  void run_warm_start();
  parallel::CheckpointContent checkpoint_content() const;
  void resume(const std::filesystem::path& folder);
  void save(int64_t step);
  void report_setup();
  StepRecord run_step(int64_t step);
  void roll_out(int64_t step, StepRecord& record);
  void compute_advantages(StepRecord& record);
  std::vector<SequenceSignals> compute_signals(int64_t step, StepRecord& record);
  void update(int64_t step, StepRecord& record, const std::vector<SequenceSignals>& signals);
  void report(int64_t step, const StepRecord& record, const MetricSet& metrics);
  void enter(const std::string& phase, int64_t step);
  bool reports() const { return world.rank() == 0; }
  int64_t updates_per_step() const {
    return config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt /
           config.policy.train_global_batch_size;
  }
  bool needs_reference() const { return config.loss_fn.reference_policy_kl_penalty != 0.0; }
  generation::SamplingParams sampling_params() const;
  ops::SamplingFilter filter() const;

  RunConfig config;
  parallel::World& world;
  RunObserver& observer;
  const std::atomic<bool>& stop_requested;
  Allocator allocator{Device::cpu()};
  Workspace workspace{allocator};
  OpContext ctx{Device::cpu(), Stream::none(), workspace};
  std::unique_ptr<model::Tokenizer> tokenizer;
  std::optional<PromptDataset> dataset;
  RewardSet rewards;
  GateKeeper gates;
  std::vector<int32_t> stops;
  std::unique_ptr<PolicyModels> models;
  std::unique_ptr<Optimizer> optimizer;
  RunState state;
  std::optional<int64_t> saved_step;
  double setup_seconds = 0;
  double model_seconds = 0;
  double warm_start_seconds = 0;
};

Trainer::Impl::Impl(const RunConfig& run_config, parallel::World& run_world,
                    RunObserver& run_observer, const std::atomic<bool>& run_stop_requested,
                    const std::optional<std::filesystem::path>& resume_from)
    : config(run_config),
      world(run_world),
      observer(run_observer),
      stop_requested(run_stop_requested),
      tokenizer(model::load_tokenizer(config.policy.tokenizer.name)),
      rewards(config.env.rewards),
      gates(config.gates, known_metric_names(config)) {
  const Stopwatch watch(setup_seconds);
  enter("setup", 0);
  DatasetConfig data = config.data.train;
  const int64_t longest_prompt =
      config.policy.max_total_sequence_length - config.policy.generation.max_new_tokens;
  if (data.max_input_seq_length == 0 || data.max_input_seq_length > longest_prompt) {
    data.max_input_seq_length = longest_prompt;
  }
  dataset.emplace(data, *tokenizer);
  state.seed = config.grpo.seed;
  set_up_models(resume_from);
}

void Trainer::Impl::set_up_models(const std::optional<std::filesystem::path>& resume_from) {
  {
    const Stopwatch watch(model_seconds);
    const ModelSource source = open_model(config.policy, *tokenizer);
    stops = stop_tokens(config.policy.generation, source.config, *tokenizer);
    set_up_policy(source);
  }
  if (config.warm_start.num_steps > 0 && !resume_from) run_warm_start();
  if (needs_reference()) models->take_reference();
  optimizer = std::make_unique<Optimizer>(config.policy.optimizer, models->policy_store(), allocator);
  if (resume_from) resume(*resume_from);
}

void Trainer::Impl::run_warm_start() {
  const Stopwatch watch(warm_start_seconds);
  if (stops.empty()) {
    throw ConfigError(
        "warm_start.num_steps is above 0, but neither the model, the tokenizer nor "
        "policy.generation.stop_token_ids gives an end token to learn");
  }
  enter("warm_start", 0);
  warm_start(config, *dataset, stops.front(), models->policy(), models->policy_store(),
             reports() ? &observer : nullptr, stop_requested, ctx);
}

parallel::CheckpointContent Trainer::Impl::checkpoint_content() const {
  parallel::CheckpointContent content;
  models->add_to(content);
  parallel::add_owned_state(content, models->policy_store(), optimizer->state_arrays());
  parallel::sort_content(content);
  return content;
}

void Trainer::Impl::resume(const std::filesystem::path& folder) {
  enter("resume", 0);
  const parallel::CheckpointManifest manifest = parallel::read_manifest(folder);
  state = RunState::from_json(manifest.state_json, (folder / "manifest.json").string());
  if (state.seed != config.grpo.seed) {
    throw ConfigError(fmt::format("grpo.seed is {}, the checkpoint {} was made with {}; allowed: {}",
                                  config.grpo.seed, folder.string(), state.seed, state.seed));
  }
  parallel::load_checkpoint(folder, checkpoint_content());
  models->mark_weights_changed();
  models->refit();
  optimizer->set_num_steps(state.optimizer_steps);
  gates.restore(state.gates_json);
  saved_step = state.step;
}

void Trainer::Impl::save(int64_t step) {
  if (!config.checkpointing.enabled || saved_step == step) return;
  enter("checkpointing", step);
  // The generation model takes the saved weights now, in a run that goes on as in one that resumes, so that both count
  // the same changed elements in the next step.
  state.pending_changed_elements = models->refit().changed_elements;
  state.step = step;
  state.optimizer_steps = optimizer->num_steps();
  state.gates_json = gates.state_json();
  const std::filesystem::path parent = checkpoint_parent(config.checkpointing, config.logger.log_dir);
  Communicator& everyone = models->groups().world.communicator();
  parallel::save_checkpoint(
      parent / fmt::format("step_{}", step), checkpoint_content(),
      {.step = step,
       .state_json = state.to_json(),
       .add_files = [&](const std::filesystem::path& folder) {
         model::ModelConfig saved = models->policy().config();
         saved.dtype = models->policy_store().dtype();
         model::write_model_config(saved, folder);
       }},
      everyone);
  if (reports()) remove_old_checkpoints(parent, config.checkpointing.keep_last);
  saved_step = step;
}

void Trainer::Impl::set_up_policy(const ModelSource& source) {
  models = std::make_unique<PolicyModels>(config, source, world, allocator);
  if (reports()) {
    observer.on_message(fmt::format(
        "model {}: {} parameters, {} layers, vocabulary {}, {}", config.policy.model_name,
        num_elements(models->policy_store().specs()), source.config.num_layers,
        source.config.vocab_size, dtype_name(models->policy_store().dtype())));
    if (source.weights == nullptr) {
      observer.on_warning(fmt::format("policy.model_name is '{}': the weights are RANDOM, drawn from seed {}",
                                      config.policy.model_name, config.grpo.seed));
    }
  }
}

void Trainer::Impl::enter(const std::string& phase, int64_t step) {
  world.set_phase(phase, step);
  allocator.set_phase(phase);
}

ops::SamplingFilter Trainer::Impl::filter() const {
  const generation::GenerationConfig& g = config.policy.generation;
  return {.temperature = static_cast<float>(g.temperature),
          .top_k = static_cast<int32_t>(g.top_k),
          .top_p = g.top_p};
}

generation::SamplingParams Trainer::Impl::sampling_params() const {
  const generation::GenerationConfig& g = config.policy.generation;
  return {.filter = filter(),
          .greedy = false,
          .max_new_tokens = g.max_new_tokens,
          .stop_token_ids = stops,
          .ignore_stop = g.ignore_eos,
          .seed = static_cast<uint64_t>(config.grpo.seed),
          .split = generation::DrawSplit::kTrain};
}

void Trainer::Impl::roll_out(int64_t step, StepRecord& record) {
  {
    const Stopwatch watch(record.times.prepare_for_generation);
    enter("refit", step);
    record.refit = models->refit();
    record.refit.changed_elements += std::exchange(state.pending_changed_elements, 0);
    record.times.transfer_and_update_weights = record.refit.seconds;
  }
  enter("generation", step);
  RolloutPlan plan{.prompts = {},
                   .first_draw_index = state.next_draw_index,
                   .num_samples = config.grpo.num_generations_per_prompt};
  for (int64_t i = 0; i < config.grpo.num_prompts_per_step; ++i) {
    plan.prompts.push_back(&dataset->at_position(plan.first_draw_index + i,
                                                 static_cast<uint64_t>(config.grpo.seed)));
  }
  state.next_draw_index += config.grpo.num_prompts_per_step;
  Rollout rollout(models->engine(), *tokenizer, rewards,
                  models->generation_store().groups().world.communicator());
  Rollout::Times times{};
  record.sequences = rollout.run(
      plan, sampling_params(), ctx,
      [&](int64_t done, int64_t total) {
        if (reports()) observer.on_progress("generation", done, total);
      },
      times);
  record.times.generation = times.generation_seconds;
  record.times.reward_calculation = times.reward_seconds;
}

void Trainer::Impl::compute_advantages(StepRecord& record) {
  std::vector<int64_t> groups;
  std::vector<double> values;
  for (const RolloutSequence& sequence : record.sequences) {
    groups.push_back(sequence.group);
    values.push_back(sequence.reward);
  }
  record.advantages = group_advantages(groups, values, config.grpo.use_leave_one_out_baseline,
                                       config.grpo.normalize_rewards);
}

std::vector<SequenceSignals> Trainer::Impl::compute_signals(int64_t step, StepRecord& record) {
  const Stopwatch watch(record.times.policy_and_reference_logprobs);
  enter("policy_and_reference_logprobs", step);
  std::vector<SequenceSignals> signals(record.sequences.size());
  for (size_t i = 0; i < signals.size(); ++i) signals[i].advantage = record.advantages.advantage[i];
  ScorerOptions options{.inv_temperature = filter().inv_temperature(),
                        .max_tokens = config.policy.sequence_packing.logprob_mb_tokens,
                        .cut_check = nullptr};
  if (updates_per_step() > 1) {
    model::CutCheck cut_check{.filter = filter()};
    options.cut_check = &cut_check;
    SequenceLogprobs previous =
        score_sequences(models->policy(), models->groups(), record.sequences, options, ctx);
    record.agreement.num_cuts_differing = cut_check.num_differing;
    for (size_t i = 0; i < signals.size(); ++i) {
      signals[i].previous_logprobs = std::move(previous.processed[i]);
      record.agreement.add(signals[i].previous_logprobs, record.sequences[i].generation_logprobs);
    }
    options.cut_check = nullptr;
  }
  if (needs_reference()) {
    SequenceLogprobs reference =
        score_sequences(models->reference(), models->groups(), record.sequences, options, ctx);
    for (size_t i = 0; i < signals.size(); ++i) {
      signals[i].reference_logprobs = std::move(reference.unfiltered[i]);
    }
  }
  return signals;
}

void Trainer::Impl::update(int64_t step, StepRecord& record,
                           const std::vector<SequenceSignals>& signals) {
  const Stopwatch watch(record.times.policy_training);
  enter("policy_training", step);
  const auto per_update = static_cast<size_t>(config.policy.train_global_batch_size);
  const int64_t total_updates = config.grpo.max_num_steps * updates_per_step();
  for (size_t begin = 0; begin < record.sequences.size(); begin += per_update) {
    const auto first = static_cast<int64_t>(begin);
    const auto last = first + static_cast<int64_t>(per_update);
    const std::vector<RolloutSequence> sequences(record.sequences.begin() + first,
                                                 record.sequences.begin() + last);
    const std::vector<SequenceSignals> own_signals(signals.begin() + first, signals.begin() + last);
    record.learning_rate =
        config.policy.optimizer.kwargs.lr *
        lr_factor(config.policy.scheduler, optimizer->num_steps(), total_updates);
    model::CutCheck cut_check{.filter = filter()};
    const bool supplies_previous = updates_per_step() == 1;
    record.updates.push_back(
        update_policy(config.loss_fn, models->policy(), models->policy_store(), *optimizer, sequences,
                      own_signals,
                      {.inv_temperature = filter().inv_temperature(),
                       .max_tokens = config.policy.sequence_packing.train_mb_tokens,
                       .learning_rate = record.learning_rate,
                       .max_grad_norm = config.policy.max_grad_norm,
                       .cut_check = supplies_previous ? &cut_check : nullptr},
                      ctx));
    if (!supplies_previous) continue;
    record.agreement.num_cuts_differing = cut_check.num_differing;
    for (size_t i = 0; i < sequences.size(); ++i) {
      record.agreement.add(record.updates.back().logprobs[i], sequences[i].generation_logprobs);
    }
  }
}

StepRecord Trainer::Impl::run_step(int64_t step) {
  StepRecord record;
  const parallel::GtpCounters before = models->policy_store().counters();
  {
    const Stopwatch watch(record.times.total);
    roll_out(step, record);
    compute_advantages(record);
    const std::vector<SequenceSignals> signals = compute_signals(step, record);
    update(step, record, signals);
    double cuts_differing = 0;
    for (const double count : parallel::all_gather_double(
             models->groups().data.communicator(),
             static_cast<double>(record.agreement.num_cuts_differing))) {
      cuts_differing += count;
    }
    record.agreement.num_cuts_differing = static_cast<int64_t>(cuts_differing);
  }
  record.gtp = models->policy_store().counters() - before;
  return record;
}

void Trainer::Impl::report_setup() {
  if (!reports() || state.step > 0) return;
  MetricSet metrics;
  metrics.set("timing/setup/total_setup_time", setup_seconds);
  metrics.set("timing/setup/policy_init", model_seconds);
  metrics.set("timing/setup/warm_start", warm_start_seconds);
  observer.on_step(0, metrics);
}

void Trainer::Impl::report(int64_t step, const StepRecord& record, const MetricSet& metrics) {
  if (!reports()) return;
  for (size_t i = 0; i < record.sequences.size(); ++i) {
    observer.on_sample(step, sample_json(record.sequences[i],
                                         dataset->example(record.sequences[i].example),
                                         record.advantages.advantage[i]));
  }
  observer.on_step(step, metrics);
  const TokenAgreement& agreement = record.agreement;
  if (config.numerics.mode == "exact" &&
      agreement.num_mismatched + agreement.num_cuts_differing != 0) {
    observer.on_warning(fmt::format(
        "exact mode: {} of {} log-probabilities and {} sampling cuts differ between generation and training",
        agreement.num_mismatched, agreement.num_checked, agreement.num_cuts_differing));
  }
}

Trainer::Trainer(const RunConfig& config, parallel::World& world, RunObserver& observer,
                 const std::atomic<bool>& stop_requested,
                 const std::optional<std::filesystem::path>& resume_from)
    : impl_(std::make_unique<Impl>(config, world, observer, stop_requested, resume_from)) {}

Trainer::~Trainer() = default;

RunOutcome Trainer::run() {
  Impl& impl = *impl_;
  Communicator& everyone = impl.models->groups().world.communicator();
  impl.report_setup();
  RunOutcome outcome{.exit_code = ExitCode::kDone, .num_steps = impl.state.step, .gates = {}};
  for (int64_t step = impl.state.step + 1; step <= impl.config.grpo.max_num_steps; ++step) {
    if (parallel::any_rank(everyone, impl.stop_requested.load())) {
      const bool saves = impl.config.checkpointing.enabled && outcome.num_steps > 0;
      if (saves) impl.save(outcome.num_steps);
      outcome.exit_code = saves ? ExitCode::kSavedAfterSignal : ExitCode::kOther;
      break;
    }
    const StepRecord record = impl.run_step(step);
    MetricSet metrics;
    add_rollout_metrics(metrics, record, impl.rewards.names());
    add_training_metrics(metrics, record);
    add_system_metrics(metrics, record, impl.world.size(), impl.allocator);
    impl.report(step, record, metrics);
    outcome.num_steps = step;
    // Gates see rank 0's values (times and memory differ between ranks); all ranks follow its verdict.
    bool stops = false;
    if (impl.reports()) {
      for (const GateTrip& trip : impl.gates.check(step, metrics)) {
        impl.observer.on_warning(trip.message);
        stops = stops || impl.gates.gates()[trip.gate].action == "stop";
      }
    }
    const bool ends = parallel::any_rank(everyone, stops) || step == impl.config.grpo.max_num_steps;
    if (ends || step % impl.config.checkpointing.save_period == 0) impl.save(step);
    if (ends) break;
  }
  outcome.gates = impl.gates.summary();
  const bool is_interrupted = outcome.exit_code != ExitCode::kDone;
  if (parallel::any_rank(everyone, impl.gates.failed()) && !is_interrupted) outcome.exit_code = ExitCode::kGate;
  return outcome;
}

}  // namespace grpo::rl
