// GenerationModel: the whole model on every rank that draws completions, refitted from the policy's
// shards.
#pragma once

#include <memory>

#include "generation/engine.h"
#include "model/transformer.h"
#include "parallel/refit.h"
#include "parallel/sharded_parameter_store.h"
#include "parallel/world.h"
#include "rl/run_config.h"

namespace grpo::rl {

// How the policy's weights reach the generation models of all ranks. Throws ConfigError for a
// precision of generation that exact mode does not allow.
std::shared_ptr<const parallel::RefitPlan> make_refit_plan(const RunConfig& config,
                                                           const std::vector<ParameterSpec>& specs,
                                                           DType policy_dtype);

// Owned by PolicyModels; one thread. Its process groups are its own, with gtp_remat off.
class GenerationModel {
 public:
  // The weights are NaN until the first refit.
  GenerationModel(const RunConfig& config, const model::ModelConfig& model,
                  const model::TransformerParameters& parameters,
                  std::shared_ptr<const parallel::RefitPlan> refit_plan, parallel::World& world,
                  Allocator& allocator);

  // Collective over the world. Throws InternalError when the fingerprints differ.
  parallel::RefitReport refit(parallel::ShardedParameterStore& policy_store);

  parallel::ShardedParameterStore& store() { return store_; }
  generation::Engine& engine() { return engine_; }

 private:
  parallel::ShardedParameterStore store_;
  model::Transformer transformer_;
  generation::Engine engine_;
  std::shared_ptr<const parallel::RefitPlan> refit_plan_;
  generation::InjectedFault fault_;
  ParameterId flipped_;  // the fault kFlippedRow's matrix
};

// Of every model of a run.
parallel::Mesh mesh_of(const RunConfig& config);
model::TransformerOptions transformer_options(const PolicyConfig& policy);

}  // namespace grpo::rl
