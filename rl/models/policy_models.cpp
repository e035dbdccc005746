#include "rl/models/policy_models.h"

#include <algorithm>
#include <utility>

#include "parallel/checkpoint/weights_io.h"

namespace grpo::rl {

namespace {

// No more places than the fullest rank has sequences in a step: each costs cache pages.
generation::EngineOptions engine_options(const RunConfig& config, int world_size) {
  const PolicyConfig& policy = config.policy;
  const int64_t sequences =
      config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt;
  return {.max_sequence_tokens = policy.max_total_sequence_length,
          .max_batch_size =
              std::min(policy.generation.max_batch_size, (sequences + world_size - 1) / world_size),
          .page_size_tokens = policy.generation.page_size_tokens,
          .prefill_chunk_tokens = policy.generation.prefill_chunk_tokens,
          .enforce_eager = policy.generation.enforce_eager,
          .fault = config.numerics.fault()};
}

}  // namespace

model::TransformerOptions transformer_options(const PolicyConfig& policy) {
  return {.max_positions = policy.max_total_sequence_length,
          .head_chunk_rows = policy.sequence_packing.logprob_chunk_tokens};
}

PolicyModels::PolicyModels(const RunConfig& config, const ModelSource& source,
                           parallel::World& world, Allocator& allocator,
                           std::shared_ptr<const parallel::RefitPlan> refit_plan)
    : parameters_(model::make_transformer_parameters(source.config,
                                                     static_cast<float>(config.policy.init_std))),
      policy_store_("policy", parameters_.specs,
                    parallel::make_training_groups(world, config.parallel.mesh(),
                                                   config.parallel.gtp_alignment),
                    compute_dtype(config.policy.precision, source), parallel::Gradients::kFp32,
                    allocator),
      policy_(source.config, parameters_, policy_store_, transformer_options(config.policy),
              allocator),
      model_config_(source.config),
      transformer_options_(transformer_options(config.policy)),
      mesh_(config.parallel.mesh()),
      world_(world),
      allocator_(allocator) {
  if (source.weights != nullptr) {
    parallel::load_weights(policy_store_, *source.weights);
  } else {
    parallel::initialize_random(policy_store_, static_cast<uint64_t>(config.seed()));
  }
  if (config.is_sft()) return;
  if (refit_plan == nullptr) {
    refit_plan =
        make_refit_plan(config.parallel, parameters_.specs, policy_store_.dtype(),
                        generation_dtype(config.policy, config.numerics, policy_store_.dtype()));
  }
  generation_ = std::make_unique<GenerationModel>(engine_options(config, world.size()),
                                                  transformer_options_, source.config, parameters_,
                                                  std::move(refit_plan), world, allocator);
}

void PolicyModels::take_reference() {
  reference_store_ = std::make_unique<parallel::ShardedParameterStore>(
      "reference", parameters_.specs,
      parallel::make_training_groups(world_, mesh_, policy_store_.groups().gtp_alignment),
      policy_store_.dtype(), parallel::Gradients::kNone, allocator_);
  for (size_t i = 0; i < parameters_.specs.size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    copy_tensor(reference_store_->shard(id), policy_store_.shard(id));
  }
  reference_store_->mark_weights_changed();
  reference_ = std::make_unique<model::Transformer>(model_config_, parameters_, *reference_store_,
                                                    transformer_options_, allocator_);
}

void PolicyModels::add_to(parallel::CheckpointContent& content) const {
  parallel::add_weights(content, "weights", policy_store_);
  if (reference_store_ != nullptr) parallel::add_weights(content, "reference", *reference_store_);
}

void PolicyModels::mark_weights_changed() {
  policy_store_.mark_weights_changed();
  if (reference_store_ != nullptr) reference_store_->mark_weights_changed();
}

model::Transformer& PolicyModels::reference() {
  CHECK(reference_ != nullptr, "no reference was taken");
  return *reference_;
}

GenerationModel& PolicyModels::generation() {
  CHECK(generation_ != nullptr, "this run has no generation model");
  return *generation_;
}

}  // namespace grpo::rl
