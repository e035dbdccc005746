// One pass over a store of two small matrices and a vector: what is gathered, freed, scattered and
// refused.
#include "parallel/gtp_pass.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "model/core/counter_rng.h"
#include "parallel/host_collectives.h"
#include "tests/policy_fixture.h"

namespace grpo::parallel {
namespace {

using testing::expect_counters;
using testing::RankContext;
using testing::run_ranks;

constexpr int64_t kRows = 5;
constexpr int64_t kCols = 3;
constexpr int64_t kAlignment = 2;

// Ids of the parameters of `small_specs`.
constexpr ParameterId kFirst = 0;
constexpr ParameterId kSecond = 1;  // of the same shape as the first
constexpr ParameterId kBias = 2;

std::vector<ParameterSpec> small_specs() {
  const auto spec = [](const char* name, int64_t cols, bool is_vector) {
    return ParameterSpec{.name = name,
                         .parts = {{name, kRows, cols, is_vector}},
                         .tp_cut = TpCut::kReplicated,
                         .gtp = is_vector ? GtpPlacement::kReplicated : GtpPlacement::kSharded,
                         .init = InitKind::kZeros,
                         .init_std = 0.0f,
                         .decays = !is_vector};
  };
  return {spec("first", kCols, false), spec("second", kCols, false), spec("bias", 1, true)};
}

float code(ParameterId id, int64_t row, int64_t col) {
  return static_cast<float>((31 * row + col + 7 * id) % 251);
}

class SmallStore {
 public:
  SmallStore(World& world, const Mesh& mesh, DType dtype = DType::kFloat32)
      : store("small", small_specs(), make_training_groups(world, mesh, kAlignment), dtype,
              Gradients::kFp32, poisoned(rank.allocator)) {
    testing::for_each_region(
        store, [](ParameterId id, const LogicalTensor&, const Region& region, const Tensor& shard) {
          for (int64_t r = 0; r < region.num_rows; ++r) {
            for (int64_t c = 0; c < region.num_cols; ++c) {
              const int64_t index = (region.stored_row + r) * region.num_cols + c;
              const float value = code(id, region.logical_row + r, c);
              if (shard.dtype() == DType::kFloat32) {
                shard.data<float>()[index] = value;
              } else {
                shard.data<Bfloat16>()[index] = Bfloat16(value);
              }
            }
          }
        });
  }

  RankContext rank;
  ShardedParameterStore store;

 private:
  static Allocator& poisoned(Allocator& allocator) {
    allocator.set_poison_scratch(true);
    return allocator;
  }
};

float value_at(const Tensor& tensor, int64_t index) {
  return tensor.dtype() == DType::kFloat32 ? tensor.data<float>()[index]
                                           : static_cast<float>(tensor.data<Bfloat16>()[index]);
}

void expect_whole(ParameterId id, const Tensor& weight) {
  ASSERT_EQ(weight.shape(), id == kBias ? Shape({kRows}) : Shape({kRows, kCols}));
  const int64_t cols = id == kBias ? 1 : kCols;
  for (int64_t i = 0; i < weight.num_elements(); ++i) {
    ASSERT_EQ(value_at(weight, i), code(id, i / cols, i % cols))
        << "parameter " << id << ", element " << i;
  }
}

UseSchedule reads(const std::vector<ParameterId>& order) {
  std::vector<ParameterUse> uses;
  for (const ParameterId id : order) uses.push_back({id, UsePhase::kForward, true, false});
  return UseSchedule(std::move(uses));
}

UseSchedule contributions(const std::vector<ParameterId>& order) {
  std::vector<ParameterUse> uses;
  for (const ParameterId id : order) uses.push_back({id, UsePhase::kBackward, false, true});
  return UseSchedule(std::move(uses));
}

// Writes or adds `value` to every element, as an operator does.
void contribute(Pass& pass, ParameterId id, float value) {
  const GradientView view = pass.begin_grad(id);
  float* data = view.tensor.data<float>();
  for (int64_t i = 0; i < view.tensor.num_elements(); ++i) {
    data[i] = view.accumulate ? data[i] + value : value;
  }
  pass.finish_grad(id);
}

// Every real element of the shard's gradient is `expected`, every padding element exactly 0.
void expect_gradient(const ShardedParameterStore& store, ParameterId id, float expected) {
  const Tensor gradient = store.gradient_shard(id);
  const ShardLayout& layout = store.layout(id);
  int64_t real_rows = 0;
  for (const Region& region : layout.regions) real_rows += region.num_rows;
  for (int64_t i = 0; i < gradient.num_elements(); ++i) {
    ASSERT_EQ(gradient.data<float>()[i], i < real_rows * layout.cols ? expected : 0.0f)
        << store.specs()[static_cast<size_t>(id)].name << ", element " << i;
  }
}

class GtpPassDegrees : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Gtp, GtpPassDegrees, ::testing::Values(1, 2, 3, 4));

TEST_P(GtpPassDegrees, AUsedWeightIsTheWholeLogicalWeight) {
  const int gtp = GetParam();
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    run_ranks(gtp, [&](World& world) {
      SmallStore small(world, Mesh(1, gtp, 1), dtype);
      const UseSchedule schedule = reads({kFirst, kBias, kSecond, kFirst});
      for (int repeat = 0; repeat < 3; ++repeat) {
        auto pass = small.store.begin_pass(schedule);
        for (const ParameterUse& use : schedule.uses()) {
          const MaterializedWeight weight = pass->use(use.parameter);
          expect_whole(use.parameter, weight.tensor());
        }
        pass->finish();
      }
      expect_counters(small.store.counters(), testing::expected_counters(small.store, schedule, 3));
      EXPECT_EQ(small.store.counters().gathers, gtp > 1 ? 9 : 0);  // the bias is never gathered
    });
  }
}

TEST_P(GtpPassDegrees, G06_NeighboursOfOneShapeNeverShareABuffer) {
  const int gtp = GetParam();
  run_ranks(gtp, [&](World& world) {
    SmallStore small(world, Mesh(1, gtp, 1));
    const UseSchedule schedule = reads({kFirst, kSecond, kFirst});
    auto pass = small.store.begin_pass(schedule);
    const MaterializedWeight first = pass->use(kFirst);
    {
      const MaterializedWeight second = pass->use(kSecond);
      const MaterializedWeight again = pass->use(kFirst);
      EXPECT_NE(first.tensor().raw(), second.tensor().raw());
      expect_whole(kFirst, first.tensor());
      expect_whole(kSecond, second.tensor());
      expect_whole(kFirst, again.tensor());
    }
    expect_whole(kFirst, first.tensor());
  });
}

TEST(GtpPass, AReleasedBufferIsPoisonedAndUsedAgain) {
  run_ranks(2, [](World& world) {
    SmallStore small(world, Mesh(1, 2, 1));
    const UseSchedule schedule = reads({kFirst, kSecond});
    auto pass = small.store.begin_pass(schedule);
    const float* data = nullptr;
    {
      const MaterializedWeight weight = pass->use(kFirst);
      data = weight.tensor().data<float>();
    }
    for (int64_t i = 0; i < kRows * kCols; ++i)
      EXPECT_TRUE(std::isnan(data[i]));  // the pool still owns it
    const size_t live = small.rank.allocator.live_bytes();
    const MaterializedWeight weight = pass->use(kSecond);
    EXPECT_EQ(weight.tensor().raw(), data);
    EXPECT_EQ(small.rank.allocator.live_bytes(), live);
  });
}

TEST_P(GtpPassDegrees, D01_ContributionsOfOneWeightAddUpAndScatterOnce) {
  const int gtp = GetParam();
  run_ranks(gtp, [&](World& world) {
    SmallStore small(world, Mesh(1, gtp, 1));
    const UseSchedule schedule = contributions({kFirst, kBias, kSecond, kFirst});
    small.store.zero_gradients();
    const float own = static_cast<float>(1 << world.rank());
    auto pass = small.store.begin_pass(schedule);
    contribute(*pass, kFirst, own);
    contribute(*pass, kBias, own);
    contribute(*pass, kSecond, 2 * own);
    EXPECT_EQ(small.store.counters().reduce_scatters,
              gtp > 1 ? 1 : 0);  // the first one's is not complete
    contribute(*pass, kFirst, 16 * own);
    pass->finish();
    pass.reset();
    small.store.reduce_gradients();
    const auto all = static_cast<float>((1 << gtp) - 1);
    expect_gradient(small.store, kFirst, 17 * all);
    expect_gradient(small.store, kSecond, 2 * all);
    expect_gradient(small.store, kBias, all);
    expect_counters(small.store.counters(), testing::expected_counters(small.store, schedule, 1));
  });
}

TEST_P(GtpPassDegrees, D02_NothingOfRecycledScratchReachesAGradient) {
  const int gtp = GetParam();
  run_ranks(gtp, [&](World& world) {
    SmallStore small(world, Mesh(1, gtp, 1));
    const UseSchedule schedule({{kFirst, UsePhase::kForward, true, false},
                                {kFirst, UsePhase::kBackward, true, true},
                                {kSecond, UsePhase::kBackward, true, true}});
    small.store.zero_gradients();
    for (int micro_batch = 1; micro_batch <= 3; ++micro_batch) {
      auto pass = small.store.begin_pass(schedule);
      { const MaterializedWeight weight = pass->use(kFirst); }
      for (const ParameterId id : {kFirst, kSecond}) {
        const MaterializedWeight weight = pass->use(id);
        contribute(*pass, id, 1.0f);
      }
      pass->finish();
      expect_gradient(small.store, kFirst, static_cast<float>(gtp * micro_batch));
      expect_gradient(small.store, kSecond, static_cast<float>(gtp * micro_batch));
    }
    small.store.zero_gradients();
    expect_gradient(small.store, kFirst, 0.0f);
  });
}

// In bf16, 256 + 1 is 256: a sum of 256 or 264 would show accumulation or transport in bf16.
TEST(GtpPass, D06_ContributionsAreSummedInFloat32) {
  run_ranks(8, [](World& world) {
    SmallStore small(world, Mesh(1, 8, 1), DType::kBfloat16);
    const UseSchedule schedule = contributions({kFirst, kBias});
    auto pass = small.store.begin_pass(schedule);
    for (const ParameterId id : {kFirst, kBias})
      contribute(*pass, id, world.rank() == 0 ? 256.0f : 1.0f);
    pass->finish();
    pass.reset();
    small.store.reduce_gradients();
    expect_gradient(small.store, kFirst, 263.0f);
    expect_gradient(small.store, kBias, 263.0f);
  });
}

TEST(GtpPass, G07_EveryReplicaReadsTheWeightsOfTheLastStep) {
  run_ranks(4, [](World& world) {
    SmallStore small(world, Mesh(1, 2, 2));
    const UseSchedule schedule = reads({kFirst, kSecond, kBias});
    const uint64_t version = small.store.version();
    for (int step = 1; step <= 3; ++step) {
      for (const OwnedSpan& span : small.store.owned_spans()) {
        for (int64_t i = 0; i < span.num_elements; ++i) span.weight.data<float>()[i] += 1000.0f;
      }
      small.store.gather_updated_weights();
      auto pass = small.store.begin_pass(schedule);
      for (const ParameterId id : {kFirst, kSecond, kBias}) {
        const MaterializedWeight weight = pass->use(id);
        const int64_t cols = id == kBias ? 1 : kCols;
        for (int64_t i = 0; i < weight.tensor().num_elements(); ++i) {
          ASSERT_EQ(weight.tensor().data<float>()[i],
                    code(id, i / cols, i % cols) + 1000.0f * static_cast<float>(step));
        }
      }
      pass->finish();
    }
    EXPECT_EQ(small.store.version(), version + 3);
    EXPECT_EQ(small.store.counters().gathers, 6);
  });
}

TEST(GtpPass, LeavingTheScheduleIsAnError) {
  run_ranks(1, [](World& world) {
    SmallStore small(world, Mesh(1, 1, 1));
    const UseSchedule schedule({{kFirst, UsePhase::kForward, true, false},
                                {kFirst, UsePhase::kBackward, true, true},
                                {kBias, UsePhase::kBackward, false, true}});
    const auto at_use = [&](int use) {
      auto pass = small.store.begin_pass(schedule);
      if (use > 0) {
        const MaterializedWeight weight = pass->use(kFirst);
      }
      if (use > 1) {
        const MaterializedWeight weight = pass->use(kFirst);
        contribute(*pass, kFirst, 1.0f);
      }
      if (use > 2) contribute(*pass, kBias, 1.0f);
      return pass;
    };
    EXPECT_THROW(at_use(0)->use(kSecond), InternalError);        // not the scheduled parameter
    EXPECT_THROW(at_use(0)->use(99), InternalError);             // no such parameter
    EXPECT_THROW(at_use(0)->begin_grad(kFirst), InternalError);  // a use that contributes nothing
    EXPECT_THROW(at_use(1)->begin_grad(kFirst), InternalError);  // before its read
    EXPECT_THROW(at_use(2)->use(kBias), InternalError);          // reads nothing
    EXPECT_THROW(at_use(2)->finish_grad(kBias), InternalError);  // not begun
    EXPECT_THROW(at_use(2)->finish(), InternalError);            // a use is missing
    EXPECT_THROW(at_use(3)->use(kFirst), InternalError);         // beyond the end
    EXPECT_NO_THROW(at_use(3)->finish());
  });
}

TEST(GtpPass, APassEndsWithNothingMaterializedAndOnePassAtATime) {
  run_ranks(2, [](World& world) {
    SmallStore small(world, Mesh(1, 2, 1));
    const UseSchedule schedule = reads({kFirst});
    auto pass = small.store.begin_pass(schedule);
    EXPECT_THROW(small.store.begin_pass(schedule), InternalError);
    EXPECT_THROW(small.store.reduce_gradients(), InternalError);
    {
      const MaterializedWeight weight = pass->use(kFirst);
      EXPECT_THROW(pass->finish(), InternalError);
    }
    EXPECT_NO_THROW(pass->finish());
  });
}

TEST(GtpPass, APassThatThrowsLeavesTheStoreUsable) {
  run_ranks(2, [](World& world) {
    SmallStore small(world, Mesh(1, 2, 1));
    const UseSchedule schedule({{kFirst, UsePhase::kBackward, true, true},
                                {kSecond, UsePhase::kBackward, true, true},
                                {kFirst, UsePhase::kBackward, false, true}});
    const auto train = [&](bool fails) {
      auto pass = small.store.begin_pass(schedule);
      for (const ParameterId id : {kFirst, kSecond}) {
        const MaterializedWeight weight = pass->use(id);
        if (fails && id == kSecond) throw DataError("the operator between use and gradient");
        contribute(*pass, id, 1.0f);
      }
      contribute(*pass, kFirst, 2.0f);
      pass->finish();
    };
    const size_t live = small.rank.allocator.live_bytes();
    EXPECT_THROW(train(true),
                 DataError);  // first's half-made gradient waits, second is materialized
    small.store.zero_gradients();
    train(false);
    expect_gradient(small.store, kFirst, 6.0f);
    expect_gradient(small.store, kSecond, 2.0f);
    const size_t after_one = small.rank.allocator.live_bytes();
    EXPECT_GT(after_one, live);
    for (int i = 0; i < 3; ++i) {
      EXPECT_THROW(train(true), DataError);
      train(false);
    }
    EXPECT_EQ(small.rank.allocator.live_bytes(), after_one);  // nothing leaks
  });
}

TEST(GtpPass, AnInferenceStoreHasNoGradients) {
  run_ranks(1, [](World& world) {
    RankContext rank;
    ShardedParameterStore store("inference", small_specs(), make_generation_groups(world),
                                DType::kFloat32, Gradients::kNone, rank.allocator);
    EXPECT_THROW(store.gradient_shard(kFirst), InternalError);
    EXPECT_EQ(store.num_owned_elements(), 0);
  });
}

// Gathers, scatters and dp collectives of one step, with a rank that dawdles wherever it likes.
void run_dawdling_step(SmallStore& small, const UseSchedule& schedule, uint64_t seed, int step) {
  const auto dawdle = [&](int place) {
    const double draw =
        uniform_at(seed, 2, static_cast<uint64_t>(step), static_cast<uint64_t>(place));
    if (draw < 0.25)
      std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(4000 * draw)));
  };
  small.store.zero_gradients();
  auto pass = small.store.begin_pass(schedule);
  int place = 0;
  for (const ParameterUse& use : schedule.uses()) {
    if (place % 3 == 0) dawdle(place);
    ++place;
    if (use.reads_weight) {
      const MaterializedWeight weight = pass->use(use.parameter);
      if (use.contributes_gradient) contribute(*pass, use.parameter, 1.0f);
    } else {
      contribute(*pass, use.parameter, 1.0f);
    }
  }
  pass->finish();
  pass.reset();
  dawdle(100);
  small.store.reduce_gradients();
  const auto sum = static_cast<float>(small.store.groups().data.size());
  for (const OwnedSpan& span : small.store.owned_spans()) {
    for (int64_t i = 0; i < span.num_elements; ++i) {
      ASSERT_EQ(span.gradient.data<float>()[i], sum);
      span.weight.data<float>()[i] += 1.0f;
    }
  }
  small.store.gather_updated_weights();
}

void run_dawdling_steps(const Mesh& mesh, int num_steps) {
  run_ranks(4, [&](World& world) {
    SmallStore small(world, mesh);
    const UseSchedule schedule({{kFirst, UsePhase::kForward, true, false},
                                {kSecond, UsePhase::kForward, true, false},
                                {kSecond, UsePhase::kBackward, true, true},
                                {kBias, UsePhase::kBackward, false, true},
                                {kFirst, UsePhase::kBackward, false, true}});
    for (int step = 0; step < num_steps; ++step) {
      run_dawdling_step(small, schedule, static_cast<uint64_t>(world.rank()), step);
    }
    const ProcessGroups& groups = small.store.groups();
    for (const AxisGroup* axis : {&groups.gtp_remat, &groups.dp}) {
      const auto issued = static_cast<double>(axis->communicator().counters().num_collectives);
      EXPECT_GE(issued, axis->size() > 1 ? num_steps : 0);
      for (const double other : all_gather_double(axis->communicator(), issued))
        EXPECT_EQ(other, issued);
    }
    EXPECT_EQ(small.store.shard(kBias).data<float>()[0],
              code(kBias, 0, 0) + static_cast<float>(num_steps));
  });
}

TEST(GtpPass, N02_DawdlingRanksOfGtpAndDpNeverHang) { run_dawdling_steps(Mesh(1, 2, 2), 500); }
TEST(GtpPass, N02_DawdlingRanksOfTpAndGtpNeverHang) { run_dawdling_steps(Mesh(2, 2, 1), 200); }

}  // namespace
}  // namespace grpo::parallel
