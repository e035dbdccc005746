// Stores and plan of one refitting rank, for the tests of refit.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "parallel/refit/refit.h"
#include "tests/parallel/coded_weights.h"
#include "tests/parallel/late_weights.h"
#include "tests/run_ranks.h"

namespace grpo::parallel {

using grpo::testing::Delay;
using grpo::testing::delays_for;
using grpo::testing::even_config;
using grpo::testing::odd_config;
using grpo::testing::RankContext;
using grpo::testing::run_ranks;

inline std::vector<ParameterSpec> specs_of(const model::ModelConfig& config) {
  return model::make_transformer_parameters(config, 0.1f).specs;
}

struct RefitSetup {
  model::ModelConfig trained = odd_config();
  model::ModelConfig generated = odd_config();
  int gtp = 2;
  int dp = 1;
  DType trained_dtype = DType::kFloat32;
  DType generated_dtype = DType::kFloat32;
  RefitPlanOptions options = {};
  Delay delay = Delay::kNone;  // of all collectives

  int world_size() const { return gtp * dp; }
};

// Policy, generation model and plan of one rank. The generation model starts as NaN.
class RefitRank {
 public:
  RefitRank(World& world, const RefitSetup& setup)
      : RefitRank(world, setup, std::make_shared<RankContext>(world)) {}
  // In the memory of another: a world attaches one device at a time.
  RefitRank(World& world, const RefitSetup& setup, const RefitRank& neighbour)
      : RefitRank(world, setup, neighbour.memory) {}

  Communicator& world() { return generation.groups().world.communicator(); }
  RefitReport refit() { return parallel::refit(plan, policy, generation, world()); }

  std::shared_ptr<RankContext> memory;
  ShardedParameterStore policy;
  ShardedParameterStore generation;
  RefitPlan plan;

 private:
  RefitRank(World& world, const RefitSetup& setup, std::shared_ptr<RankContext> shared_memory)
      : memory(std::move(shared_memory)),
        policy("policy", specs_of(setup.trained),
               delay_all(make_training_groups(world, Mesh(1, setup.gtp, setup.dp), 16), setup.delay,
                         memory->allocator),
               setup.trained_dtype, Gradients::kFp32, memory->allocator),
        generation("generation", specs_of(setup.generated),
                   delay_all(make_generation_groups(world), setup.delay, memory->allocator),
                   setup.generated_dtype, Gradients::kNone, memory->allocator),
        plan({.specs = policy.specs(),
              .coordinates = training_coordinates(Mesh(1, setup.gtp, setup.dp), 16),
              .dtype = setup.trained_dtype},
             {.specs = generation.specs(),
              .coordinates = whole_model_coordinates(setup.world_size()),
              .dtype = setup.generated_dtype},
             setup.options),
        guard_(*memory->attachment) {
    generation.poison_weights();
  }

  DeviceFailureGuard guard_;
};

// A code for the generation model's names; a head that training does not store is the embedding.
inline Code with_tied_head(const Code& code, bool tied) {
  return [code, tied](const std::string& tensor, int64_t row, int64_t col) {
    return code(tied && tensor == "lm_head.weight" ? "model.embed_tokens.weight" : tensor, row,
                col);
  };
}

class RefitTest : public ::testing::Test {
 protected:
  void SetUp() override { ::alarm(60); }  // a hang ends the program
  void TearDown() override { ::alarm(0); }

  // Runs fn on the ranks of the setup, with each delay that their devices can have.
  static void on_ranks(RefitSetup setup, const std::function<void(World&, const RefitSetup&)>& fn) {
    for (const Delay delay : delays_for(setup.world_size())) {
      SCOPED_TRACE(grpo::testing::delay_name(delay));
      setup.delay = delay;
      run_ranks(setup.world_size(), [&](World& world) { fn(world, setup); });
    }
  }
};

}  // namespace grpo::parallel
