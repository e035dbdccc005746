#include "tools/benchmark/rig.h"

#include <algorithm>
#include <cmath>

#include "model/core/counter_rng.h"
#include "rl/config/resolve_config.h"
#include "tools/benchmark/phase_clock.h"

namespace grpo::benchmark {

namespace {

constexpr uint64_t kSeed = 42;

rl::RunConfig run_config(const Options& options) {
  rl::RunConfig config;
  config.grpo.seed = static_cast<int64_t>(kSeed);
  config.grpo.num_prompts_per_step = options.num_sequences;
  config.grpo.num_generations_per_prompt = 1;
  rl::PolicyConfig& policy = config.policy;
  policy.model_name = options.model_name;
  policy.precision = options.precision;
  policy.max_total_sequence_length =
      std::max(options.sequence_length, options.prompt_tokens + options.new_tokens);
  policy.sequence_packing = {.train_mb_tokens = options.micro_batch_tokens,
                             .logprob_mb_tokens = options.micro_batch_tokens,
                             .logprob_chunk_tokens = options.head_chunk_rows};
  policy.generation.max_new_tokens = options.new_tokens;
  policy.generation.ignore_eos = true;
  policy.generation.max_batch_size = options.num_sequences;
  policy.generation.page_size_tokens = options.page_size_tokens;
  policy.generation.prefill_chunk_tokens = options.prefill_chunk_tokens;
  policy.generation.enforce_eager = options.enforce_eager;
  config.parallel.device = options.device;
  if (options.fast) config.numerics.mode = "fast";
  rl::resolve_mesh(config.parallel, 1);
  return config;
}

void check_positions(const rl::RunConfig& config, const model::ModelConfig& model) {
  if (config.policy.max_total_sequence_length > model.max_position_embeddings) {
    throw ConfigError(fmt::format("sequences of {} tokens; allowed: at most the model's {}",
                                  config.policy.max_total_sequence_length,
                                  model.max_position_embeddings));
  }
}

std::unique_ptr<parallel::World> solo_world() {
  return parallel::World::connect({.rank = 0, .size = 1, .store = parallel::make_memory_store()});
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Rig::Rig(const Options& options)
    : options_(options),
      config_(run_config(options)),
      world_(solo_world()),
      device_(parallel::choose_device(options.device, 0, *world_)),
      allocator_(device_.device),
      matrix_library_(device_.device),
      parameters_(model::make_transformer_parameters(options.model, 0.0f)),
      models_(config_, rl::ModelSource{.config = options.model, .weights = nullptr}, *world_,
              allocator_),
      optimizer_(config_.policy.optimizer, models_.policy_store(), allocator_),
      dtype_(models_.policy_store().dtype()) {
  check_positions(config_, options.model);
  replace_workspace(0);
}

void Rig::replace_workspace(size_t reserved_bytes) {
  wait_for_device(device());
  ctx_.reset();
  workspace_.reset();
  workspace_ = std::make_unique<Workspace>(allocator_);
  workspace_->reserve(reserved_bytes);
  ctx_ = std::make_unique<OpContext>(OpContext{device(), Stream::none(), *workspace_,
                                               &matrix_library_, config_.numerics.operators()});
}

std::vector<double> Rig::medians(const std::string& phase,
                                 const std::function<std::vector<double>()>& measure) {
  const std::string warm_up = phase + ", warm-up";
  replace_workspace(0);
  allocator_.set_phase(warm_up);
  measure();
  replace_workspace(allocator_.peaks().at(warm_up).workspace.total());
  allocator_.set_phase(phase);
  std::vector<std::vector<double>> series;
  for (int64_t i = 0; i < options_.repeats; ++i) {
    const std::vector<double> values = measure();
    series.resize(values.size());
    for (size_t v = 0; v < values.size(); ++v) series[v].push_back(values[v]);
  }
  std::vector<double> result;
  for (const std::vector<double>& values : series) result.push_back(median(values));
  return result;
}

size_t Rig::peak_bytes(const std::string& phase) const {
  return allocator_.peaks().at(phase).bytes;
}

double Rig::seconds(const std::function<void()>& work) {
  wait_for_device(device());
  const auto start = std::chrono::steady_clock::now();
  work();
  wait_for_device(device());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<int32_t> Rig::random_tokens(uint64_t stream, int64_t count) const {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    const double draw = uniform_at(kSeed, stream, static_cast<uint64_t>(i), 0);
    tokens.push_back(static_cast<int32_t>(draw * static_cast<double>(options_.model.vocab_size)));
  }
  return tokens;
}

std::vector<rl::RolloutSequence> Rig::make_rollout(int64_t num_sequences) const {
  // What random weights give about every token.
  const auto logprob =
      static_cast<float>(-std::log(static_cast<double>(options_.model.vocab_size)));
  std::vector<rl::RolloutSequence> sequences;
  for (int64_t s = 0; s < num_sequences; ++s) {
    rl::RolloutSequence& sequence = sequences.emplace_back();
    sequence.group = s;
    sequence.reward = static_cast<double>(s % 2);
    sequence.finish_reason = generation::FinishReason::kLength;
    sequence.prompt_tokens = random_tokens(static_cast<uint64_t>(s), options_.sequence_length);
    const auto response = sequence.prompt_tokens.begin() + options_.context_tokens;
    sequence.response_tokens.assign(response, sequence.prompt_tokens.end());
    sequence.prompt_tokens.erase(response, sequence.prompt_tokens.end());
    sequence.generation_logprobs.assign(sequence.response_tokens.size(), logprob);
  }
  return sequences;
}

std::vector<rl::SequenceSignals> Rig::make_signals(
    const std::vector<rl::RolloutSequence>& sequences) const {
  std::vector<rl::SequenceSignals> signals;
  for (size_t s = 0; s < sequences.size(); ++s) {
    signals.push_back({.advantage = s % 2 == 0 ? -1.0 : 1.0,
                       .previous_logprobs = {},
                       .reference_logprobs = sequences[s].generation_logprobs});
  }
  return signals;
}

}  // namespace grpo::benchmark
