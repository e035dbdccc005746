// The gradient norm and updates on sharded stores: the layout must not show.
#include "rl/models/optimizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "model/core/counter_rng.h"
#include "model/core/host_transfer.h"
#include "parallel/checkpoint/weights_io.h"
#include "parallel/comm/host_collectives.h"
#include "tests/policy_fixture.h"

namespace grpo::rl {
namespace {

using testing::Delay;
using testing::for_each_region;
using testing::LogicalValues;
using testing::NamedValues;
using testing::RankContext;
using testing::run_ranks;

struct MeshSizes {
  int tp;
  int gtp_remat;
  int dp;

  int num_ranks() const { return tp * gtp_remat * dp; }
};

const std::vector<MeshSizes> kMeshes = {{1, 1, 1}, {1, 2, 1}, {1, 3, 1}, {1, 4, 1}, {2, 1, 1},
                                        {2, 2, 1}, {1, 1, 2}, {1, 2, 2}, {1, 1, 3}};

std::string mesh_name(const MeshSizes& mesh) {
  return fmt::format("tp{}_gtp{}_dp{}", mesh.tp, mesh.gtp_remat, mesh.dp);
}

// A store under a mesh, its optimizer, and gradients written by logical place.
class OptimizedStore {
 public:
  OptimizedStore(parallel::World& world, const model::ModelConfig& config, const MeshSizes& mesh,
                 const OptimizerConfig& optimizer_config, DType dtype = DType::kFloat32,
                 Delay delay = Delay::kNone)
      : rank(world),
        store("policy", model::make_transformer_parameters(config, 0.1f).specs,
              testing::delay(parallel::make_training_groups(
                                 world, parallel::Mesh(mesh.tp, mesh.gtp_remat, mesh.dp), 16),
                             delay, rank.allocator),
              dtype, parallel::Gradients::kFp32, rank.allocator) {
    testing::fill_lively(store, 3);
    optimizer.emplace(optimizer_config, store, rank.allocator);
  }

  // What passes leave on this rank: reduce_gradients sums over dp, so each of those ranks gets its
  // part.
  void set_gradients(
      const std::function<float(const LogicalTensor&, int64_t row, int64_t col)>& value) {
    store.zero_gradients();
    for_each_region(store, [&](ParameterId id, const LogicalTensor& part,
                               const parallel::ShardRegion& region, const Tensor&) {
      // On one rank of the sum only, so that no rounding comes in.
      const parallel::AxisGroup& dp = store.groups().dp;
      if (dp.rank() != dp.size() - 1) return;
      HostDraft gradient(store.gradient_shard(id).rows(region.stored_row, region.num_rows));
      for (int64_t r = 0; r < region.num_rows; ++r) {
        for (int64_t c = 0; c < region.num_cols; ++c) {
          gradient.view().data<float>()[r * region.num_cols + c] =
              value(part, region.logical_row + r, region.logical_col + c);
        }
      }
      gradient.commit();
    });
    store.reduce_gradients();
  }

  void step(double learning_rate, double max_norm) {
    optimizer->step(learning_rate, optimizer->gradient_norm(rank.ctx), max_norm, rank.ctx);
  }

  RankContext rank;
  parallel::ShardedParameterStore store;
  std::optional<Optimizer> optimizer;
};

float ones(const LogicalTensor&, int64_t, int64_t) { return 1.0f; }

float lively(const LogicalTensor& part, int64_t row, int64_t col) {
  return normal_at(17, hash_name(part.name), static_cast<uint64_t>(row),
                   static_cast<uint64_t>(col));
}

OptimizerConfig adamw(double weight_decay) {
  OptimizerConfig config;
  config.kwargs.weight_decay = weight_decay;
  return config;
}

using Steps = std::function<void(OptimizedStore&)>;

// Weights after `steps` on every rank, where `num_device_ranks` ranks run.
NamedValues weights_after(const model::ModelConfig& config, const MeshSizes& mesh,
                          const OptimizerConfig& optimizer_config, const Steps& steps, DType dtype,
                          int num_device_ranks, Delay delay = Delay::kNone) {
  LogicalValues values(model::make_transformer_parameters(config, 0.1f).specs);
  run_ranks(mesh.num_ranks(), [&](parallel::World& world) {
    testing::set_rank_of_this_thread(world.rank(), num_device_ranks);
    OptimizedStore optimized(world, config, mesh, optimizer_config, dtype, delay);
    steps(optimized);
    values.add(optimized.store, [&](ParameterId id) { return optimized.store.shard(id); });
  });
  return values.take();
}

NamedValues weights_after(const model::ModelConfig& config, const MeshSizes& mesh,
                          const OptimizerConfig& optimizer_config, const Steps& steps,
                          DType dtype = DType::kFloat32) {
  return weights_after(config, mesh, optimizer_config, steps, dtype, mesh.num_ranks());
}

testing::OneRank<NamedValues> weights_of_one_rank(const model::ModelConfig& config,
                                                  const OptimizerConfig& optimizer_config,
                                                  const Steps& steps,
                                                  DType dtype = DType::kFloat32) {
  return testing::OneRank<NamedValues>([=](int num_device_ranks) {
    return weights_after(config, {1, 1, 1}, optimizer_config, steps, dtype, num_device_ranks);
  });
}

TEST(Optimizer, S01_NormOfOnesIsTheRootOfTheNumberOfLogicalParameters) {
  for (const model::ModelConfig& config : {testing::even_config(true), testing::even_config(false),
                                           testing::odd_config(true), testing::odd_config(false)}) {
    const auto num_parameters =
        static_cast<double>(num_elements(model::make_transformer_parameters(config, 0.1f).specs));
    for (const MeshSizes& mesh : kMeshes) {
      for (const Delay delay : testing::delays_for(mesh.num_ranks())) {
        SCOPED_TRACE(mesh_name(mesh) + testing::delay_name(delay));
        run_ranks(mesh.num_ranks(), [&](parallel::World& world) {
          OptimizedStore optimized(world, config, mesh, testing::plain_sgd(), DType::kFloat32,
                                   delay);
          optimized.set_gradients(ones);
          EXPECT_EQ(optimized.optimizer->gradient_norm(optimized.rank.ctx),
                    std::sqrt(num_parameters));
        });
      }
    }
  }
}

TEST(Optimizer, S01_AClippedStepIsTheSameInEveryLayout) {
  const auto config = testing::odd_config();
  const auto clipped_step = [](OptimizedStore& optimized) {
    optimized.set_gradients(ones);
    optimized.step(/*learning_rate=*/8.0, /*max_norm=*/1.0);
  };
  auto reference = weights_of_one_rank(config, testing::plain_sgd(), clipped_step);
  const NamedValues start =
      weights_after(config, {1, 1, 1}, testing::plain_sgd(), [](OptimizedStore&) {});
  // Clipped to length 1, every element moves by 8 / sqrt(parameters).
  double moved = 0;
  for (size_t i = 0; i < start.size(); ++i) {
    moved =
        std::hypot(moved, testing::difference_norm(reference.beside(1)[i].second, start[i].second));
  }
  EXPECT_NEAR(moved, 8.0, 1e-4);
  for (const MeshSizes& mesh : kMeshes) {
    for (const Delay delay : testing::delays_for(mesh.num_ranks())) {
      SCOPED_TRACE(mesh_name(mesh) + testing::delay_name(delay));
      EXPECT_EQ(weights_after(config, mesh, testing::plain_sgd(), clipped_step, DType::kFloat32,
                              mesh.num_ranks(), delay),
                reference.beside(mesh.num_ranks()));
    }
  }
}

TEST(Optimizer, S01_AStepBelowTheLimitIsNotScaled) {
  const auto config = testing::odd_config();
  const auto step_with = [&](double max_norm) {
    return weights_after(config, {1, 2, 1}, testing::plain_sgd(), [&](OptimizedStore& optimized) {
      optimized.set_gradients(lively);
      optimized.step(0.01, max_norm);
    });
  };
  EXPECT_EQ(step_with(1e9), step_with(0.0));
  EXPECT_NE(step_with(1.0), step_with(0.0));
}

TEST(Optimizer, AdamWIsTheSameInEveryLayoutInBothDtypes) {
  const auto config = testing::odd_config(false);
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    const auto steps = [](OptimizedStore& optimized) {
      for (int step = 0; step < 3; ++step) {
        optimized.set_gradients(lively);
        optimized.step(0.01, 0.0);
      }
    };
    auto reference = weights_of_one_rank(config, adamw(0.1), steps, dtype);
    for (const MeshSizes& mesh :
         std::vector<MeshSizes>{{1, 2, 1}, {1, 1, 2}, {1, 4, 1}, {2, 2, 1}, {1, 2, 2}}) {
      SCOPED_TRACE(mesh_name(mesh));
      EXPECT_EQ(weights_after(config, mesh, adamw(0.1), steps, dtype),
                reference.beside(mesh.num_ranks()));
    }
  }
}

// In bfloat16 a small step is lost on the weight, but not on its master: after enough of them the
// weight moves.
TEST(Optimizer, MastersKeepWhatBfloat16WeightsCannot) {
  const auto moved_after = [](int num_steps) {
    const auto config = testing::even_config();
    const auto run = [&](int steps) {
      return weights_after(
          config, {1, 2, 1}, testing::plain_sgd(),
          [&](OptimizedStore& optimized) {
            for (int step = 0; step < steps; ++step) {
              optimized.set_gradients(ones);
              optimized.step(4e-4, 0.0);
            }
          },
          DType::kBfloat16);
    };
    // The final norm's weights are about 1, where bfloat16 is spaced 2^-7 or 2^-8 apart.
    const NamedValues start = run(0);
    const NamedValues end = run(num_steps);
    CHECK(start.back().first == "model.norm.weight");
    return testing::difference_norm(start.back().second, end.back().second);
  };
  EXPECT_LT(moved_after(1), 0.05);
  EXPECT_NEAR(moved_after(50), 50 * 4e-4 * 8, 0.02);  // 64 elements
}

TEST(Optimizer, D02_PaddingStaysZeroThroughAdamWWithDecay) {
  for (const int gtp : {2, 4}) {
    run_ranks(gtp, [&](parallel::World& world) {
      OptimizedStore optimized(world, testing::odd_config(), {1, gtp, 1}, adamw(0.1));
      for (int step = 0; step < 20; ++step) {
        optimized.set_gradients(lively);
        optimized.step(0.01, 1.0);
      }
      int64_t num_padding = 0;
      for (size_t i = 0; i < optimized.store.specs().size(); ++i) {
        const auto id = static_cast<ParameterId>(i);
        const parallel::ShardLayout& layout = optimized.store.layout(id);
        int64_t real_rows = 0;
        for (const parallel::ShardRegion& region : layout.regions) real_rows += region.num_rows;
        for (const Tensor& tensor :
             {optimized.store.shard(id), optimized.store.gradient_shard(id)}) {
          const auto padding =
              to_host<float>(tensor.rows(real_rows, layout.shard_rows - real_rows));
          ASSERT_EQ(padding, std::vector<float>(padding.size(), 0.0f));
          num_padding += static_cast<int64_t>(padding.size());
        }
      }
      if (world.rank() == gtp - 1) {
        EXPECT_GT(num_padding, 2 * 48 * 48);
      }
      // Moments exist for logical elements alone: all ranks' state, without the replicated copies,
      // is the model.
      double own = 0;
      for (const parallel::OwnedSpan& span : optimized.store.owned_spans()) {
        if (span.counts_in_norm) own += static_cast<double>(span.num_elements);
      }
      double all = 0;
      for (const double part :
           parallel::all_gather_double(optimized.store.groups().world.communicator(), own)) {
        all += part;
      }
      EXPECT_EQ(all, static_cast<double>(num_elements(optimized.store.specs())));
    });
  }
}

// The dp axis cuts state at chunk borders, wherever in a tensor they fall.
TEST(Optimizer, OwnedSpansNameTheirLogicalPlace) {
  for (const MeshSizes& mesh : kMeshes) {
    SCOPED_TRACE(mesh_name(mesh));
    const auto coded = [](const LogicalTensor& part, int64_t row, int64_t col) {
      return static_cast<float>(1 + row * part.cols + col);
    };
    run_ranks(mesh.num_ranks(), [&](parallel::World& world) {
      OptimizedStore optimized(world, testing::odd_config(), mesh, testing::plain_sgd());
      optimized.set_gradients(coded);
      int64_t next_offset = 0;
      for (const parallel::OwnedSpan& span : optimized.store.owned_spans()) {
        EXPECT_EQ(span.state_offset, next_offset);
        next_offset += span.num_elements;
        const ParameterSpec& spec = optimized.store.specs()[static_cast<size_t>(span.parameter)];
        const LogicalTensor& part = spec.parts[static_cast<size_t>(span.part)];
        EXPECT_EQ(to_host<float>(span.gradient)[0], coded(part, span.logical_row, span.logical_col))
            << part.name;
      }
      EXPECT_EQ(optimized.store.num_owned_elements(), next_offset);
    });
  }
}

// Each rank's gradients of replicated parameters are `own`; the sum over all ranks is `sum`.
void step_with_own_data(OptimizedStore& optimized, float own, float sum) {
  parallel::ShardedParameterStore& store = optimized.store;
  const auto for_each_replicated = [&](const std::function<void(ParameterId)>& visit) {
    for (size_t i = 0; i < store.specs().size(); ++i) {
      if (store.specs()[i].gtp == GtpPlacement::kReplicated) visit(static_cast<ParameterId>(i));
    }
  };
  std::vector<ParameterUse> uses;
  for_each_replicated([&](ParameterId id) {
    uses.push_back({.parameter = id,
                    .phase = UsePhase::kBackward,
                    .reads_weight = false,
                    .contributes_gradient = true});
  });
  const UseSchedule schedule(uses);
  store.zero_gradients();
  std::unique_ptr<Pass> pass = store.begin_pass(schedule);
  for_each_replicated([&](ParameterId id) {
    const Tensor gradient = pass->begin_grad(id).tensor;
    const std::vector<float> values(static_cast<size_t>(gradient.num_elements()), own);
    copy_from_host<float>(gradient.reshaped({gradient.num_elements()}), values);
    pass->finish_grad(id);
  });
  pass->finish();
  pass.reset();
  store.reduce_gradients();
  for (const parallel::OwnedSpan& span : store.owned_spans()) {
    const ParameterSpec& spec = store.specs()[static_cast<size_t>(span.parameter)];
    if (spec.gtp != GtpPlacement::kReplicated) continue;
    for (const float gradient : to_host<float>(span.gradient)) ASSERT_EQ(gradient, sum);
  }
  optimized.step(0.01, 0.0);
  double checksum = 0;
  for_each_replicated([&](ParameterId id) {
    const std::vector<float> weights = to_host<float>(store.shard(id));
    for (size_t e = 0; e < weights.size(); ++e) {
      checksum += weights[e] * (static_cast<double>(e) + 1.0);
    }
  });
  for (const double other :
       parallel::all_gather_double(store.groups().world.communicator(), checksum)) {
    EXPECT_EQ(other, checksum);
  }
}

TEST(Optimizer, D04_NormsAndBiasesStayEqualOnPeersWithDifferentData) {
  for (const MeshSizes& mesh : std::vector<MeshSizes>{{1, 2, 2}, {1, 2, 1}, {1, 1, 2}}) {
    for (const Delay delay : testing::delays_for(mesh.num_ranks())) {
      run_ranks(mesh.num_ranks(), [&](parallel::World& world) {
        SCOPED_TRACE(mesh_name(mesh) + testing::delay_name(delay));
        OptimizedStore optimized(world, testing::even_config(), mesh, adamw(0.0), DType::kFloat32,
                                 delay);
        const int sum = world.size() * (world.size() + 1) / 2;
        for (int step = 0; step < 10; ++step) {
          step_with_own_data(optimized, static_cast<float>(world.rank() + 1),
                             static_cast<float>(sum));
        }
      });
    }
  }
}

TEST(Optimizer, ANonFiniteGradientNamesTensorAndRankOnEveryRank) {
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::atomic<int> num_refused = 0;
    run_ranks(2, [&](parallel::World& world) {
      OptimizedStore optimized(world, testing::odd_config(), {1, 2, 1}, testing::plain_sgd());
      optimized.set_gradients([&](const LogicalTensor& part, int64_t row, int64_t) {
        return part.name == "model.layers.1.mlp.up_proj.weight" && row == 99 ? poison : 1.0f;
      });
      try {
        optimized.optimizer->gradient_norm(optimized.rank.ctx);
      } catch (const NonFiniteError& error) {
        ++num_refused;
        EXPECT_EQ(std::string(error.what()),
                  "the gradient of 'model.layers.1.mlp.up_proj.weight' is not finite (first seen "
                  "on rank 1)");
      }
    });
    EXPECT_EQ(num_refused, 2);
  }
}

// 0 / 0 in AdamW: the update itself makes weights NaN although every gradient is finite.
TEST(Optimizer, AWeightThatTheUpdateMakesNotFiniteStopsEveryRank) {
  std::atomic<int> num_refused{0};
  run_ranks(2, [&](parallel::World& world) {
    OptimizerConfig config;
    config.kwargs.eps = 0;
    OptimizedStore optimized(world, testing::odd_config(), {1, 2, 1}, config);
    optimized.store.zero_gradients();
    optimized.store.reduce_gradients();
    try {
      optimized.step(1e-3, 0.0);
    } catch (const NonFiniteError& error) {
      EXPECT_EQ(
          std::string(error.what()),
          "after the update the weight of 'model.embed_tokens.weight' is not finite (first seen "
          "on rank 0)");
      ++num_refused;
    }
  });
  EXPECT_EQ(num_refused, 2);
}

TEST(Optimizer, WeightsWrittenFromOutsideNeedAReload) {
  run_ranks(2, [](parallel::World& world) {
    OptimizedStore optimized(world, testing::odd_config(), {1, 2, 1}, testing::plain_sgd());
    parallel::initialize_random(optimized.store, 99);
    optimized.optimizer->reload_masters(optimized.rank.ctx);
    const uint64_t version = optimized.store.version();
    const std::vector<float> before = to_host<float>(optimized.store.shard(0));
    optimized.set_gradients(ones);
    optimized.step(0.0, 0.0);
    EXPECT_EQ(to_host<float>(optimized.store.shard(0)), before);
    EXPECT_GT(optimized.store.version(), version);  // whatever is derived from weights is stale
    EXPECT_EQ(optimized.optimizer->num_steps(), 1);
  });
}

}  // namespace
}  // namespace grpo::rl
