#include "rl/run/memory_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "model/device_context.h"
#include "parallel/comm/rehearsal_world.h"
#include "rl/data/work_division.h"
#include "rl/models/exactness_probe.h"
#include "rl/models/optimizer.h"
#include "rl/models/policy_models.h"
#include "rl/run/rank_memory_inputs.h"

namespace grpo::rl {

namespace {

// Where the data are not known: as many as any batch takes.
constexpr int64_t kMaxValidationExamples = int64_t{1} << 31;

// What sequences of a kind can look like, in tokens.
struct SequenceBounds {
  int64_t longest;
  int64_t shortest_prompt;
  int64_t most_predicted;  // of one sequence
};

SequenceBounds rollout_bounds(const RunConfig& config, const DatasetLengths& lengths) {
  const int64_t drawn = config.policy.generation.max_new_tokens;
  return {
      .longest = std::min(lengths.longest_prompt + drawn, config.policy.max_total_sequence_length),
      .shortest_prompt = lengths.shortest_prompt,
      .most_predicted = drawn};
}

SequenceBounds example_bounds(const DatasetLengths& lengths) {
  return {.longest = lengths.longest_example + 1,
          .shortest_prompt = lengths.shortest_prompt,
          .most_predicted = lengths.longest_response + 1};
}

DatasetLengths unknown_lengths(const RunConfig& config) {
  const int64_t limit = config.policy.max_total_sequence_length;
  const int64_t room =
      config.is_sft() ? limit - 1 : limit - config.policy.generation.max_new_tokens;
  const int64_t chosen = config.data.train.max_input_seq_length;
  return {.shortest_prompt = 1,
          .longest_prompt = chosen == 0 ? room : std::min(room, chosen),
          .longest_response = limit - 2,
          .longest_example = limit - 1};
}

DataLengths unknown_data(const RunConfig& config) {
  DataLengths data{.train = unknown_lengths(config), .validation = std::nullopt};
  if (!config.data.validation.empty()) {
    data.validation = {.lengths = data.train, .most_examples = kMaxValidationExamples};
  }
  return data;
}

// Of one batch; 0 where nothing is drawn for validation.
int64_t num_validation_prompts(const RunConfig& config, const DataLengths& data) {
  if (config.is_sft() || !data.validation) return 0;
  const GrpoConfig& grpo = config.grpo;
  const int64_t most = data.validation->most_examples;
  return std::min(grpo.max_val_samples == 0 ? most : std::min(most, grpo.max_val_samples),
                  grpo.val_batch_size);
}

struct FullestBatch {
  model::PackedBatch batch;
  Buffer more_sequences;  // the arrays of as many short ones as the same tokens may be
};

// The fullest micro-batch that a rank can meet. Sequences of the longest kind and a rest fill the
// token limit, or what dealing the longest first to the emptiest micro-batch can put together; the
// predicted tokens are as many as any mix of prompts allows.
FullestBatch fullest_batch(const SequenceBounds& bounds, int64_t num_sequences,
                           const DataRanks& ranks, const MicroBatchRule& rule, bool has_kept,
                           Allocator& allocator) {
  const int64_t num_batches = least_micro_batches(ranks, rule);
  const int64_t share = (num_sequences + num_batches - 1) / num_batches;
  const int64_t tokens = std::min(rule.max_tokens, share * bounds.longest);
  int64_t predicted =
      std::min(num_sequences * bounds.most_predicted,
               tokens * bounds.most_predicted / (bounds.shortest_prompt + bounds.most_predicted));
  std::vector<model::PackedSequence> sequences;
  const std::vector<int32_t> ids(static_cast<size_t>(bounds.longest), 0);
  ops::KeptTokens kept;
  if (has_kept) kept.append_everything(bounds.longest);
  for (int64_t left = tokens; left > 0;) {
    const int64_t length = std::min(left, bounds.longest);
    const int64_t own_predicted = std::min(predicted, length - 1);
    sequences.push_back({.tokens = std::span(ids).first(static_cast<size_t>(length)),
                         .first_target = length - own_predicted,
                         .kept = kept.view().rows(0, own_predicted)});
    predicted -= own_predicted;
    left -= length;
  }
  model::PackedBatch batch(sequences, allocator);
  // One of a prompt of the shortest kind and a token more each.
  const int64_t most_sequences =
      std::min(num_sequences, std::max<int64_t>(1, tokens / (bounds.shortest_prompt + 1)));
  const int64_t missing = std::max<int64_t>(0, most_sequences - batch.num_sequences());
  return {
      .batch = std::move(batch),
      .more_sequences = allocator.allocate(
          "packed_batch", static_cast<size_t>(missing * model::PackedBatch::kBytesPerSequence))};
}

// Stands for a loss of the same shape of work.
class RehearsedLoss final : public model::TokenLoss {
 public:
  explicit RehearsedLoss(bool is_token_local) : is_token_local_(is_token_local) {}
  bool is_token_local() const override { return is_token_local_; }
  void evaluate(int64_t, int64_t, const model::LogprobValues&,
                const model::LogprobGradientValues&) override {}

 private:
  bool is_token_local_;
};

// One rank's run on a rehearsal device, in the trainer's order.
class Rehearsal {
 public:
  Rehearsal(const RunConfig& config, const model::ModelConfig& model, const DataLengths& data,
            Device device, std::shared_ptr<const parallel::RefitPlan> refit_plan, int rank,
            size_t workspace_bytes)
      : config_(config),
        data_(data),
        lengths_(data.train),
        world_(parallel::make_rehearsal_world(
            rank, static_cast<int>(config.parallel.tensor * config.parallel.gtp_remat *
                                   config.parallel.data))),
        device_(device.rehearsal(), config.numerics.operators()),
        attachment_(world_->attach_device(device_.allocator)) {
    device_.workspace.reserve(workspace_bytes);
    models_ =
        std::make_unique<PolicyModels>(config, ModelSource{.config = model, .weights = nullptr},
                                       *world_, device_.allocator, std::move(refit_plan));
  }

  // `checkpoint_bytes`: this rank's staging of a checkpoint.
  void run(size_t checkpoint_bytes) {
    probe_exactness(config_, *models_, device_.ctx);
    if (config_.warm_start.num_steps > 0) warm_start();
    enter("setup");
    if (config_.needs_reference()) models_->take_reference();
    optimizer_ = std::make_unique<Optimizer>(config_.policy.optimizer, models_->policy_store(),
                                             device_.allocator);
    // What a first step leaves behind, a second one finds.
    for (int64_t step = 0; step < std::min<int64_t>(2, config_.max_num_steps()); ++step) {
      if (config_.is_sft()) {
        sft_step();
      } else {
        grpo_step();
      }
      if (data_.validation) validate();
      if (!config_.checkpointing.enabled) continue;
      enter("checkpointing");
      if (models_->generates()) models_->refit();
      const Buffer staging = device_.allocator.allocate("checkpoint/buckets", checkpoint_bytes);
    }
  }

  RankMemoryPlan plan() const {
    RankMemoryPlan plan;
    const std::map<std::string, PhasePeak> peaks = device_.allocator.peaks();
    for (const std::string& phase : phases_) {
      plan.phases.push_back({.phase = phase, .peak = peaks.at(phase)});
      plan.workspace_bytes = std::max(plan.workspace_bytes, peaks.at(phase).workspace.total());
    }
    return plan;
  }

 private:
  void enter(const std::string& phase) {
    device_.allocator.set_phase(phase);
    if (std::find(phases_.begin(), phases_.end(), phase) == phases_.end()) phases_.push_back(phase);
  }

  bool filters() const { return filter().is_on(); }
  ops::SamplingFilter filter() const { return config_.policy.generation.filter(); }
  int64_t sequences_per_step() const {
    return config_.grpo.num_prompts_per_step * config_.grpo.num_generations_per_prompt;
  }
  // Then the training pass supplies what a scoring pass would.
  bool has_one_update() const {
    return sequences_per_step() == config_.policy.train_global_batch_size;
  }
  DataRanks ranks() const { return data_ranks(models_->groups()); }

  void grpo_step() {
    enter("refit");
    models_->refit();
    enter("generation");
    generate(config_.grpo.num_prompts_per_step, config_.grpo.num_generations_per_prompt, lengths_);
    score();
    enter("policy_training");
    train(*optimizer_, rollout_bounds(config_, lengths_), config_.policy.train_global_batch_size,
          config_.loss_fn.is_token_local(), filters());
    models_->policy_store().drop_idle_buffers();
  }

  void sft_step() {
    enter("policy_training");
    train(*optimizer_, example_bounds(lengths_), config_.policy.train_global_batch_size, true,
          false);
    models_->policy_store().drop_idle_buffers();
  }

  void validate() {
    enter("validation");
    const auto& [lengths, most_examples] = *data_.validation;
    if (config_.is_sft()) {
      score(models_->policy(), nullptr, example_bounds(lengths),
            std::min(most_examples, config_.sft.val_global_batch_size));
      models_->policy_store().drop_idle_buffers();
      return;
    }
    models_->refit();
    generate(num_validation_prompts(config_, data_), config_.grpo.val_num_generations_per_prompt,
             lengths);
  }

  void warm_start() {
    enter("warm_start");
    Optimizer optimizer(config_.policy.optimizer, models_->policy_store(), device_.allocator);
    train(optimizer, example_bounds(lengths_), config_.warm_start.global_batch_size, true, false);
    models_->policy_store().drop_idle_buffers();
  }

  void train(Optimizer& optimizer, const SequenceBounds& bounds, int64_t num_sequences,
             bool is_token_local, bool with_kept) {
    const FullestBatch fullest =
        fullest_batch(bounds, num_sequences, ranks(), config_.policy.sequence_packing.training(),
                      with_kept, device_.allocator);
    RehearsedLoss loss(is_token_local);
    model::FilterCheck filter_check{.filter = filter()};
    const bool checks = !config_.is_sft() && has_one_update();
    models_->policy().train(fullest.batch, 1.0f, loss, checks ? &filter_check : nullptr,
                            device_.ctx);
    models_->policy_store().reduce_gradients();
    optimizer.step(0.0, optimizer.gradient_norm(device_.ctx), config_.policy.max_grad_norm,
                   device_.ctx);
  }

  // This rank's share of the (prompt, sample) list.
  void generate(int64_t num_prompts, int64_t num_samples, const DatasetLengths& lengths) {
    const EngineShare share =
        engine_share(num_prompts, num_samples, world_->size(), world_->rank());
    models_->engine().rehearse({.num_prompts = share.num_prompts,
                                .num_samples = share.num_samples,
                                .first_num_samples = share.first_num_samples,
                                .samples_per_prompt = num_samples,
                                .shortest_prompt = lengths.shortest_prompt,
                                .longest_prompt = lengths.longest_prompt},
                               {.filter = filter(),
                                .greedy = false,
                                .max_new_tokens = config_.policy.generation.max_new_tokens,
                                .stop_token_ids = {},
                                .ignore_stop = true,
                                .seed = 0,
                                .split = generation::DrawSplit::kTrain,
                                .stores_kept_tokens = true},
                               device_.ctx);
  }

  void score() {
    enter("policy_and_reference_logprobs");
    model::FilterCheck filter_check{.filter = filter()};
    const SequenceBounds bounds = rollout_bounds(config_, lengths_);
    if (!has_one_update()) score(models_->policy(), &filter_check, bounds, sequences_per_step());
    if (!config_.needs_reference()) return;
    score(models_->reference(), nullptr, bounds, sequences_per_step());
    models_->reference_store().drop_idle_buffers();
  }

  void score(model::Transformer& transformer, model::FilterCheck* filter_check,
             const SequenceBounds& bounds, int64_t num_sequences) {
    const Workspace::Scope scope(device_.workspace);
    const FullestBatch fullest = fullest_batch(
        bounds, num_sequences, ranks(),
        {.max_tokens = config_.policy.sequence_packing.logprob_mb_tokens, .multiple = 1},
        !config_.is_sft() && filters(), device_.allocator);
    const ops::TokenLogprobs out{
        .processed = device_.workspace.take(DType::kFloat32, {fullest.batch.num_predicted()}),
        .unfiltered = device_.workspace.take(DType::kFloat32, {fullest.batch.num_predicted()})};
    transformer.score(out, fullest.batch, 1.0f, filter_check, device_.ctx);
  }

  const RunConfig& config_;
  DataLengths data_;
  DatasetLengths lengths_;  // of data.train
  std::unique_ptr<parallel::World> world_;
  model::DeviceContext device_;
  std::unique_ptr<parallel::DeviceAttachment> attachment_;
  std::vector<std::string> phases_{"setup"};
  std::unique_ptr<PolicyModels> models_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace

ValidationLengths ValidationLengths::covering(const ValidationLengths& other) const {
  const DatasetLengths& a = lengths;
  const DatasetLengths& b = other.lengths;
  return {.lengths = {.shortest_prompt = std::min(a.shortest_prompt, b.shortest_prompt),
                      .longest_prompt = std::max(a.longest_prompt, b.longest_prompt),
                      .longest_response = std::max(a.longest_response, b.longest_response),
                      .longest_example = std::max(a.longest_example, b.longest_example)},
          .most_examples = std::max(most_examples, other.most_examples)};
}

const PhasePlan* RankMemoryPlan::find(const std::string& phase) const {
  const auto it = std::find_if(phases.begin(), phases.end(),
                               [&](const PhasePlan& plan) { return plan.phase == phase; });
  return it == phases.end() ? nullptr : &*it;
}

size_t RankMemoryPlan::peak_bytes() const {
  size_t bytes = 0;
  for (const PhasePlan& plan : phases) bytes = std::max(bytes, plan.peak.bytes);
  return bytes;
}

int MemoryPlan::fullest_rank(const std::string& phase) const {
  const auto bytes = [&](const RankMemoryPlan& rank) {
    const PhasePlan* plan = rank.find(phase);
    return plan == nullptr ? 0 : plan->peak.bytes;
  };
  return static_cast<int>(
      std::max_element(ranks.begin(), ranks.end(),
                       [&](const auto& a, const auto& b) { return bytes(a) < bytes(b); }) -
      ranks.begin());
}

int MemoryPlan::fullest_rank() const {
  return static_cast<int>(std::max_element(ranks.begin(), ranks.end(),
                                           [](const auto& a, const auto& b) {
                                             return a.peak_bytes() < b.peak_bytes();
                                           }) -
                          ranks.begin());
}

MemoryPlan plan_memory(const RunConfig& config, const model::ModelConfig& model,
                       const std::optional<DataLengths>& lengths, Device device) {
  const DataLengths bounds = lengths.value_or(unknown_data(config));
  std::shared_ptr<const parallel::RefitPlan> refit_plan;
  if (!config.is_sft()) {
    const ModelSource source{.config = model, .weights = nullptr};
    const DType dtype = compute_dtype(config.policy.precision, source);
    refit_plan = make_refit_plan(
        config.parallel,
        model::make_transformer_parameters(model, static_cast<float>(config.policy.init_std)).specs,
        dtype, generation_dtype(config.policy, config.numerics, dtype));
  }
  const std::vector<RankMemoryInputs> needs = memory_inputs_of_ranks(
      config, model, refit_plan.get(), num_validation_prompts(config, bounds));
  MemoryPlan plan{.device = device, .ranks = {}};
  std::map<RankMemoryInputs, RankMemoryPlan> rehearsed;
  for (const RankMemoryInputs& own : needs) {
    const auto [known, is_new] = rehearsed.try_emplace(own);
    if (is_new) {
      // A first rehearsal finds what the workspace must hold; a second one starts with it, as the
      // run does. One at a time, so that addresses suffice.
      const auto rank = static_cast<int>(plan.ranks.size());
      const auto rehearse = [&](size_t workspace_bytes) {
        Rehearsal rehearsal(config, model, bounds, device, refit_plan, rank, workspace_bytes);
        rehearsal.run(own.checkpoint_bytes);
        return rehearsal.plan();
      };
      known->second = rehearse(rehearse(0).workspace_bytes);
    }
    plan.ranks.push_back(known->second);
  }
  return plan;
}

}  // namespace grpo::rl
