#include "rl/run/rank_memory_inputs.h"

#include <algorithm>
#include <memory>

#include "model/transformer.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/rehearsal_world.h"
#include "rl/data/work_division.h"
#include "rl/models/generation_model.h"
#include "rl/models/model_source.h"
#include "rl/models/optimizer.h"

namespace grpo::rl {

namespace {

// One rank's trained weights and optimizer, on a rehearsal device.
class RehearsedShard {
 public:
  RehearsedShard(const RunConfig& config, const std::vector<ParameterSpec>& specs, DType dtype,
                 int rank)
      : config_(config),
        world_(parallel::make_rehearsal_world(rank, config.parallel.mesh().world_size())),
        allocator_(Device::cpu().rehearsal()),
        store_("policy", specs,
               parallel::make_training_groups(*world_, config.parallel.mesh(),
                                              config.parallel.gtp_alignment),
               dtype, parallel::Gradients::kFp32, allocator_) {}

  int64_t owned_elements() const { return store_.num_owned_elements(); }

  // As long as the run's; the reference is laid out as the policy is.
  parallel::CheckpointContent checkpoint_content() {
    const Optimizer optimizer(config_.policy.optimizer, store_, allocator_);
    parallel::CheckpointContent content;
    parallel::add_weights(content, "weights", store_);
    if (config_.needs_reference()) parallel::add_weights(content, "reference", store_);
    parallel::add_owned_state(content, store_, optimizer.state_arrays());
    parallel::sort_content(content);
    // The memory behind the values goes with this rehearsal; their sizes stay.
    return content;
  }

 private:
  const RunConfig& config_;
  std::unique_ptr<parallel::World> world_;
  Allocator allocator_;
  parallel::ShardedParameterStore store_;
};

}  // namespace

EngineShare engine_share(int64_t num_prompts, int64_t samples_per_prompt, int world_size,
                         int rank) {
  const auto [begin, end] = contiguous_share(num_prompts * samples_per_prompt, world_size, rank);
  if (begin == end) return {.num_prompts = 0, .num_samples = 0, .first_num_samples = 0};
  const int64_t first_prompt = begin / samples_per_prompt;
  const int64_t end_prompt = (end + samples_per_prompt - 1) / samples_per_prompt;
  return {.num_prompts = end_prompt - first_prompt,
          .num_samples = end - begin,
          .first_num_samples = std::min(end, (first_prompt + 1) * samples_per_prompt) - begin};
}

std::vector<RankMemoryInputs> memory_inputs_of_ranks(const RunConfig& config,
                                                     const model::ModelConfig& model,
                                                     const parallel::RefitPlan* refit_plan,
                                                     int64_t num_validation_prompts) {
  const int world_size = config.parallel.mesh().world_size();
  const std::vector<ParameterSpec> specs =
      model::make_transformer_parameters(model, static_cast<float>(config.policy.init_std)).specs;
  const DType dtype =
      compute_dtype(config.policy.precision, ModelSource{.config = model, .weights = nullptr});
  std::vector<int64_t> refit_bytes(static_cast<size_t>(world_size), 0);
  if (refit_plan != nullptr) refit_bytes = refit_plan->most_staged_bytes();
  std::vector<size_t> checkpoint_bytes(refit_bytes.size(), 0);
  if (config.checkpointing.enabled) {
    checkpoint_bytes = parallel::checkpoint_bucket_bytes(world_size, [&](int rank) {
      return RehearsedShard(config, specs, dtype, rank).checkpoint_content();
    });
  }
  std::vector<RankMemoryInputs> needs;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    needs.push_back(
        {.owned_elements = RehearsedShard(config, specs, dtype, rank).owned_elements(),
         .rollout = engine_share(config.grpo.num_prompts_per_step,
                                 config.grpo.num_generations_per_prompt, world_size, rank),
         .validation = engine_share(num_validation_prompts,
                                    config.grpo.val_num_generations_per_prompt, world_size, rank),
         .refit_bytes = refit_bytes[r],
         .checkpoint_bytes = checkpoint_bytes[r]});
  }
  return needs;
}

}  // namespace grpo::rl
