#include "rl/models/generation_model.h"

#include <utility>

#include "generation/fault_injection.h"

namespace grpo::rl {

std::shared_ptr<const parallel::RefitPlan> make_refit_plan(const parallel::ParallelConfig& parallel,
                                                           const std::vector<ParameterSpec>& specs,
                                                           DType policy_dtype,
                                                           DType generation_dtype) {
  const parallel::Mesh mesh = parallel.mesh();
  return std::make_shared<const parallel::RefitPlan>(
      parallel::RefitSide{
          .specs = specs,
          .coordinates = parallel::training_coordinates(mesh, parallel.gtp_alignment),
          .dtype = policy_dtype},
      parallel::RefitSide{.specs = specs,
                          .coordinates = parallel::whole_model_coordinates(mesh.world_size()),
                          .dtype = generation_dtype},
      parallel::RefitPlanOptions{});
}

GenerationModel::GenerationModel(const generation::EngineOptions& engine,
                                 const model::TransformerOptions& transformer,
                                 const model::ModelConfig& model,
                                 const model::TransformerParameters& parameters,
                                 std::shared_ptr<const parallel::RefitPlan> refit_plan,
                                 parallel::World& world, Allocator& allocator)
    : store_("generation", parameters.specs, parallel::make_generation_groups(world),
             refit_plan->destination_dtype(), parallel::Gradients::kNone, allocator),
      transformer_(model, parameters, store_, transformer, allocator),
      engine_(transformer_, engine, allocator),
      refit_plan_(std::move(refit_plan)),
      fault_(engine.fault),
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
