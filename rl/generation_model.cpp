#include "rl/generation_model.h"

#include <algorithm>
#include <utility>

#include "generation/fault_injection.h"
#include "rl/model_source.h"

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

std::shared_ptr<const parallel::RefitPlan> make_refit_plan(const RunConfig& config,
                                                           const std::vector<ParameterSpec>& specs,
                                                           DType policy_dtype) {
  const parallel::Mesh mesh = mesh_of(config);
  return std::make_shared<const parallel::RefitPlan>(
      parallel::RefitSide{
          .specs = specs,
          .coordinates = parallel::training_coordinates(mesh, config.parallel.gtp_alignment),
          .dtype = policy_dtype},
      parallel::RefitSide{.specs = specs,
                          .coordinates = parallel::whole_model_coordinates(mesh.world_size()),
                          .dtype = generation_dtype(config, policy_dtype)},
      parallel::RefitPlanOptions{});
}

parallel::Mesh mesh_of(const RunConfig& config) {
  return parallel::Mesh(static_cast<int>(config.parallel.tensor),
                        static_cast<int>(config.parallel.gtp_remat),
                        static_cast<int>(config.parallel.data));
}

model::TransformerOptions transformer_options(const PolicyConfig& policy) {
  return {.max_positions = policy.max_total_sequence_length,
          .head_chunk_rows = policy.sequence_packing.logprob_chunk_tokens};
}

GenerationModel::GenerationModel(const RunConfig& config, const model::ModelConfig& model,
                                 const model::TransformerParameters& parameters,
                                 std::shared_ptr<const parallel::RefitPlan> refit_plan,
                                 parallel::World& world, Allocator& allocator)
    : store_("generation", parameters.specs, parallel::make_generation_groups(world),
             refit_plan->destination_dtype(), parallel::Gradients::kNone, allocator),
      transformer_(model, parameters, store_, transformer_options(config.policy), allocator),
      engine_(transformer_, engine_options(config, world.size()), allocator),
      refit_plan_(std::move(refit_plan)),
      fault_(config.numerics.fault()),
      flipped_(parameters.layers.back().down_weight) {
  store_.poison_weights();
  parallel::connect_for_refit(store_, store_.groups().world.communicator());
  if (fault_ == generation::InjectedFault::kBfloat16Rope) {
    generation::round_to_bfloat16(transformer_.rope_table());
  }
}

parallel::RefitReport GenerationModel::refit(parallel::ShardedParameterStore& policy_store) {
  const parallel::RefitReport report =
      parallel::refit(*refit_plan_, policy_store, store_, store_.groups().world.communicator());
  CHECK(report.fingerprint_ok(),
        "refit: the generation model's weights differ from the policy's (fingerprint {:016x}, "
        "{:016x})",
        report.destination_fingerprint, report.source_fingerprint);
  if (fault_ == generation::InjectedFault::kFlippedRow) {
    generation::flip_row(store_.shard(flipped_), 0);
    store_.mark_weights_changed();
  }
  return report;
}

}  // namespace grpo::rl
