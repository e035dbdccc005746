// PolicyModels: the models of a run on one rank, each with its own process groups: the trained
// policy and its frozen reference, sharded by GTP, and the generation model, whole on every rank.
#pragma once

#include <memory>
#include <optional>

#include "model/transformer.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/world.h"
#include "parallel/store/sharded_parameter_store.h"
#include "rl/config/run_config.h"
#include "rl/models/generation_model.h"
#include "rl/models/model_source.h"

namespace grpo::rl {

// Of every model of a run.
model::TransformerOptions transformer_options(const PolicyConfig& policy);

// Owned by the trainer; one thread.
class PolicyModels {
 public:
  // Loads or initialises the policy. Supervised fine-tuning has no generation model. The refit
  // plan, which all ranks of a run share, is made when it is not given.
  PolicyModels(const RunConfig& config, const ModelSource& source, parallel::World& world,
               Allocator& allocator,
               std::shared_ptr<const parallel::RefitPlan> refit_plan = nullptr);

  // What a checkpoint holds of the models: the policy's weights, and the reference's once there is
  // one.
  void add_to(parallel::CheckpointContent& content) const;
  // Freezes the policy's present weights as the reference.
  void take_reference();
  // After weights were written from outside.
  void mark_weights_changed();

  parallel::ShardedParameterStore& policy_store() { return policy_store_; }
  model::Transformer& policy() { return policy_; }
  model::Transformer& reference();  // after take_reference()
  parallel::ShardedParameterStore& reference_store() { return *reference_store_; }  // likewise
  const parallel::ProcessGroups& groups() const { return policy_store_.groups(); }
  const model::TransformerParameters& parameters() const { return parameters_; }

  // The rest is there only when this says so.
  bool generates() const { return generation_ != nullptr; }
  // Policy into the generation model; throws InternalError when the fingerprints differ.
  parallel::RefitReport refit() { return generation().refit(policy_store_); }
  parallel::ShardedParameterStore& generation_store() { return generation().store(); }
  generation::Engine& engine() { return generation().engine(); }

 private:
  GenerationModel& generation();

  model::TransformerParameters parameters_;
  parallel::ShardedParameterStore policy_store_;
  model::Transformer policy_;
  std::unique_ptr<GenerationModel> generation_;
  std::unique_ptr<parallel::ShardedParameterStore> reference_store_;
  std::unique_ptr<model::Transformer> reference_;
  model::ModelConfig model_config_;
  model::TransformerOptions transformer_options_;
  parallel::Mesh mesh_;
  parallel::World& world_;
  Allocator& allocator_;
};

}  // namespace grpo::rl
