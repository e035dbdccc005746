#include "rl/policy_models.h"

#include <algorithm>

#include "parallel/weights_io.h"

namespace grpo::rl {

namespace {

parallel::Mesh mesh_of(const RunConfig& config) {
  return parallel::Mesh(static_cast<int>(config.parallel.tensor),
                        static_cast<int>(config.parallel.gtp_remat),
                        static_cast<int>(config.parallel.data));
}

model::TransformerOptions transformer_options(const PolicyConfig& policy) {
  return {.max_positions = policy.max_total_sequence_length,
          .head_chunk_rows = policy.sequence_packing.logprob_chunk_tokens};
}

// No more places than the fullest rank has sequences in a step: each costs cache pages.
generation::EngineOptions engine_options(const RunConfig& config, int world_size) {
  const PolicyConfig& policy = config.policy;
  const int64_t sequences =
      config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt;
  return {.max_sequence_tokens = policy.max_total_sequence_length,
          .max_batch_size =
              std::min(policy.generation.max_batch_size, (sequences + world_size - 1) / world_size),
          .page_size_tokens = policy.generation.page_size_tokens,
          .prefill_chunk_tokens = policy.generation.prefill_chunk_tokens};
}

parallel::RefitPlan make_refit_plan(const RunConfig& config,
                                    const std::vector<ParameterSpec>& specs, DType dtype) {
  const parallel::Mesh mesh = mesh_of(config);
  return parallel::RefitPlan(
      {.specs = specs,
       .coordinates = parallel::training_coordinates(mesh, config.parallel.gtp_alignment),
       .dtype = dtype},
      {.specs = specs,
       .coordinates = parallel::whole_model_coordinates(mesh.world_size()),
       .dtype = dtype},
      {});
}

}  // namespace

PolicyModels::PolicyModels(const RunConfig& config, const ModelSource& source,
                           parallel::World& world, Allocator& allocator)
    : parameters_(model::make_transformer_parameters(source.config,
                                                     static_cast<float>(config.policy.init_std))),
      policy_store_(
          "policy", parameters_.specs,
          parallel::make_training_groups(world, mesh_of(config), config.parallel.gtp_alignment),
          compute_dtype(config.policy.precision, source), parallel::Gradients::kFp32, allocator),
      policy_(source.config, parameters_, policy_store_, transformer_options(config.policy),
              allocator),
      generation_store_("generation", parameters_.specs, parallel::make_generation_groups(world),
                        policy_store_.dtype(), parallel::Gradients::kNone, allocator),
      generation_(source.config, parameters_, generation_store_, transformer_options(config.policy),
                  allocator),
      engine_(generation_, engine_options(config, world.size()), allocator),
      refit_plan_(make_refit_plan(config, parameters_.specs, policy_store_.dtype())),
      model_config_(source.config),
      transformer_options_(transformer_options(config.policy)),
      mesh_(mesh_of(config)),
      world_(world),
      allocator_(allocator) {
  if (source.weights != nullptr) {
    parallel::load_weights(policy_store_, *source.weights);
  } else {
    parallel::initialize_random(policy_store_, static_cast<uint64_t>(config.grpo.seed));
  }
  generation_store_.poison_weights();
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

parallel::RefitReport PolicyModels::refit() {
  const parallel::RefitReport report =
      parallel::refit(refit_plan_, policy_store_, generation_store_,
                      generation_store_.groups().world.communicator());
  CHECK(report.fingerprint_ok(),
        "refit: the generation model's weights differ from the policy's (fingerprint {:016x}, "
        "{:016x})",
        report.destination_fingerprint, report.source_fingerprint);
  return report;
}

}  // namespace grpo::rl
