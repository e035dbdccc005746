// GenerationModel: the whole model on every rank that draws completions, refitted from the policy's
// shards.
#pragma once

#include <memory>

#include "generation/engine.h"
#include "model/transformer.h"
#include "parallel/comm/world.h"
#include "parallel/layout/parallel_config.h"
#include "parallel/refit/refit.h"
#include "parallel/store/sharded_parameter_store.h"

namespace grpo::rl {

// How the policy's weights reach the generation models of all ranks.
std::shared_ptr<const parallel::RefitPlan> make_refit_plan(const parallel::ParallelConfig& parallel,
                                                           const std::vector<ParameterSpec>& specs,
                                                           DType policy_dtype,
                                                           DType generation_dtype);

// Owned by PolicyModels; one thread. Its process groups are its own, with gtp_remat off.
class GenerationModel {
 public:
  // The weights are NaN until the first refit.
  GenerationModel(const generation::EngineOptions& engine,
                  const model::TransformerOptions& transformer, const model::ModelConfig& model,
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

}  // namespace grpo::rl
