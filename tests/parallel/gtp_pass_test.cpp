// One pass over a store of two small matrices and a vector: what is gathered, freed, scattered and
// refused.
#include "parallel/store/gtp_pass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/parallel/small_store.h"

namespace grpo::parallel {
namespace {

using testing::expect_counters;
using testing::RankContext;
using testing::run_ranks;

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

// G10: gathered weights lie wherever their buffer does, so that no graph is recorded of their
// passes.
TEST_P(GtpPassDegrees, G10_OnlyWeightsThatAreNotGatheredAreFixed) {
  const int gtp = GetParam();
  run_ranks(gtp, [&](World& world) {
    const SmallStore small(world, Mesh(1, gtp, 1));
    EXPECT_EQ(small.store.has_fixed_weights(), gtp == 1);
  });
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

// On a GPU two gathers run ahead of a use, into buffers of their own.
TEST(GtpPass, AReleasedBufferIsPoisonedAndUsedAgain) {
  run_ranks(2, [](World& world) {
    SmallStore small(world, Mesh(1, 2, 1));
    const bool is_on_cpu = small.store.device().kind == DeviceKind::kCpu;
    const UseSchedule schedule = reads({kFirst, kSecond, kFirst, kSecond, kFirst, kSecond});
    auto pass = small.store.begin_pass(schedule);
    std::set<const void*> places;
    size_t live = 0;
    for (const ParameterUse& use : schedule.uses()) {
      Tensor released;
      {
        const MaterializedWeight weight = pass->use(use.parameter);
        released = weight.tensor();
      }
      for (const float value : host_values(released))
        EXPECT_TRUE(std::isnan(value));  // the pool still owns it
      places.insert(released.raw());
      if (live == 0) live = small.rank.allocator.live_bytes();
      EXPECT_EQ(small.rank.allocator.live_bytes(), live);
    }
    EXPECT_EQ(places.size(), is_on_cpu ? 1u : 3u);
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
    small.contribute(*pass, kFirst, own);
    small.contribute(*pass, kBias, own);
    small.contribute(*pass, kSecond, 2 * own);
    EXPECT_EQ(small.store.counters().reduce_scatters,
              gtp > 1 ? 1 : 0);  // the first one's is not complete
    small.contribute(*pass, kFirst, 16 * own);
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
        small.contribute(*pass, id, 1.0f);
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
      small.contribute(*pass, id, world.rank() == 0 ? 256.0f : 1.0f);
    pass->finish();
    pass.reset();
    small.store.reduce_gradients();
    expect_gradient(small.store, kFirst, 263.0f);
    expect_gradient(small.store, kBias, 263.0f);
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
        small.contribute(*pass, kFirst, 1.0f);
      }
      if (use > 2) small.contribute(*pass, kBias, 1.0f);
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
        small.contribute(*pass, id, 1.0f);
      }
      small.contribute(*pass, kFirst, 2.0f);
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
    RankContext rank(world);
    ShardedParameterStore store("inference", small_specs(), make_generation_groups(world),
                                DType::kFloat32, Gradients::kNone, rank.allocator);
    EXPECT_THROW(store.gradient_shard(kFirst), InternalError);
    EXPECT_EQ(store.num_owned_elements(), 0);
  });
}

}  // namespace
}  // namespace grpo::parallel
