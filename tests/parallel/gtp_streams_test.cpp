// Order between the streams of a store and between its ranks: on GPUs collectives come late, or the
// work around them does; ranks dawdle.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "model/core/counter_rng.h"
#include "parallel/comm/host_collectives.h"
#include "tests/parallel/small_store.h"

namespace grpo::parallel {
namespace {

using testing::Delay;
using testing::run_ranks;

// Runs `body` on the mesh's ranks once for each delay that differs there.
void with_delays(const Mesh& mesh, const std::function<void(SmallStore&, World&)>& body) {
  for (const Delay kind : testing::delays_for(mesh.world_size())) {
    run_ranks(mesh.world_size(), [&](World& world) {
      SCOPED_TRACE(testing::delay_name(kind));
      SmallStore small(world, mesh, DType::kFloat32, kind);
      body(small, world);
    });
  }
}

// What each use of a schedule of reads saw, read on the device without the host's waiting.
std::vector<std::vector<float>> seen_by(SmallStore& small, const UseSchedule& schedule) {
  const auto num_uses = static_cast<int64_t>(schedule.uses().size());
  const OwnedTensor seen(small.rank.allocator, "test", DType::kFloat32, {num_uses * kRows * kCols});
  const auto of_use = [&](int64_t use) {
    const int64_t count = kRows * num_cols(schedule.uses()[static_cast<size_t>(use)].parameter);
    return seen.view().rows(use * kRows * kCols, count);
  };
  auto pass = small.store.begin_pass(schedule);
  for (int64_t use = 0; use < num_uses; ++use) {
    const MaterializedWeight weight =
        pass->use(schedule.uses()[static_cast<size_t>(use)].parameter);
    small.queue_late_work();
    copy_tensor(of_use(use), weight.tensor().reshaped({weight.tensor().num_elements()}));
  }
  pass->finish();
  std::vector<std::vector<float>> values;
  for (int64_t use = 0; use < num_uses; ++use) values.push_back(to_host<float>(of_use(use)));
  return values;
}

std::vector<float> raised(std::vector<float> values, float by) {
  for (float& value : values) value += by;
  return values;
}

const std::vector<Mesh> kMeshes = {Mesh(1, 2, 1), Mesh(1, 1, 2), Mesh(1, 2, 2)};

// No gather overwrites what late work still reads, and no work reads what has not arrived.
TEST(GtpPass, G06_NeighboursOfOneShapeKeepTheirContents) {
  for (const Mesh& mesh : {Mesh(1, 2, 1), Mesh(1, 3, 1)}) {
    with_delays(mesh, [](SmallStore& small, World&) {
      const UseSchedule schedule =
          reads({kFirst, kSecond, kFirst, kSecond, kBias, kFirst, kFirst, kSecond});
      for (int pass = 0; pass < 3; ++pass) {
        const auto seen = seen_by(small, schedule);
        for (size_t use = 0; use < seen.size(); ++use) {
          ASSERT_EQ(seen[use], codes(schedule.uses()[use].parameter)) << "use " << use;
        }
      }
    });
  }
}

TEST(GtpPass, G07_EveryReplicaReadsTheWeightsOfTheLastStep) {
  for (const Mesh& mesh : kMeshes) {
    with_delays(mesh, [&](SmallStore& small, World&) {
      const UseSchedule schedule = reads({kFirst, kSecond, kBias});
      const uint64_t version = small.store.version();
      for (int step = 1; step <= 3; ++step) {
        small.add_to_weights(1000.0f);
        small.store.gather_updated_weights();
        const auto seen = seen_by(small, schedule);
        for (const ParameterId id : {kFirst, kSecond, kBias}) {
          ASSERT_EQ(seen[static_cast<size_t>(id)],
                    raised(codes(id), 1000.0f * static_cast<float>(step)))
              << "parameter " << id << " in step " << step;
        }
      }
      EXPECT_EQ(small.store.version(), version + 3);
      EXPECT_EQ(small.store.counters().gathers, mesh.gtp_remat_size() > 1 ? 6 : 0);
    });
  }
}

// A gradient is complete when its step's sums over dp are taken, and its buffers are not used again
// before they were read.
TEST(GtpPass, D05_SumsOverDpFollowTheLastReduceScatter) {
  for (const Mesh& mesh : kMeshes) {
    with_delays(mesh, [&](SmallStore& small, World& world) {
      const UseSchedule schedule =
          contributions({kFirst, kSecond, kBias, kSecond, kFirst, kSecond, kFirst});
      const auto own = static_cast<float>(1 << world.rank());
      const auto all = static_cast<float>((1 << world.size()) - 1);
      for (int step = 1; step <= 3; ++step) {
        small.store.zero_gradients();
        for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
          auto pass = small.store.begin_pass(schedule);
          for (const ParameterUse& use : schedule.uses()) {
            small.contribute(*pass, use.parameter, own * static_cast<float>(step));
          }
          pass->finish();
        }
        small.store.reduce_gradients();
        for (const OwnedSpan& span : small.store.owned_spans()) {
          const float num_uses = span.parameter == kBias ? 1.0f : 3.0f;
          for (const float value : to_host<float>(span.gradient))
            ASSERT_EQ(value, 2.0f * num_uses * all * static_cast<float>(step));
        }
      }
    });
  }
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
      if (use.contributes_gradient) small.contribute(*pass, use.parameter, 1.0f);
    } else {
      small.contribute(*pass, use.parameter, 1.0f);
    }
  }
  pass->finish();
  pass.reset();
  dawdle(100);
  small.store.reduce_gradients();
  const auto sum = static_cast<float>(small.store.groups().data.size());
  for (const OwnedSpan& span : small.store.owned_spans()) {
    for (const float gradient : to_host<float>(span.gradient)) ASSERT_EQ(gradient, sum);
  }
  small.add_to_weights(1.0f);
  small.store.gather_updated_weights();
}

void run_dawdling_steps(const Mesh& mesh, int num_steps) {
  with_delays(mesh, [&](SmallStore& small, World& world) {
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
    EXPECT_EQ(to_host<float>(small.store.shard(kBias)),
              raised(codes(kBias), static_cast<float>(num_steps)));
  });
}

TEST(GtpPass, N02_DawdlingRanksOfGtpAndDpNeverHang) { run_dawdling_steps(Mesh(1, 2, 2), 500); }
TEST(GtpPass, N02_DawdlingRanksOfTpAndGtpNeverHang) { run_dawdling_steps(Mesh(2, 2, 1), 200); }
TEST(GtpPass, N02_TwoDawdlingRanksNeverHang) {
  run_dawdling_steps(Mesh(1, 2, 1), 200);
  run_dawdling_steps(Mesh(1, 1, 2), 200);
}

}  // namespace
}  // namespace grpo::parallel
