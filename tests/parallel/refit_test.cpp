// Refit carried out between real stores; ranks as threads.
#include "parallel/refit/refit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>

#include "tests/parallel/refit_fixture.h"

namespace grpo::parallel {
namespace {

struct Case {
  const char* name;
  int gtp;
  int dp;
  bool trained_tied;
  bool generated_tied;
  DType trained_dtype;
  DType generated_dtype;
};

class RefitLayouts : public RefitTest, public ::testing::WithParamInterface<Case> {};

constexpr DType kF32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBfloat16;

INSTANTIATE_TEST_SUITE_P(
    All, RefitLayouts,
    ::testing::Values(
        Case{"gtp1", 1, 1, true, true, kF32, kF32}, Case{"gtp2", 2, 1, true, true, kF32, kF32},
        Case{"gtp2_to_bf16", 2, 1, true, true, kF32, kBf16},
        Case{"gtp2_from_bf16", 2, 1, true, true, kBf16, kF32},
        Case{"gtp2_in_bf16", 2, 1, true, true, kBf16, kBf16},
        Case{"gtp3", 3, 1, true, true, kF32, kF32}, Case{"gtp4", 4, 1, true, true, kF32, kBf16},
        Case{"gtp2_dp2", 2, 2, true, true, kF32, kF32}, Case{"dp2", 1, 2, true, true, kBf16, kF32},
        Case{"dp3", 1, 3, true, true, kF32, kF32},
        Case{"untied_gtp2", 2, 1, false, false, kF32, kF32},
        Case{"separate_head_gtp2", 2, 1, true, false, kF32, kF32},
        Case{"separate_head_gtp4_bf16", 4, 1, true, false, kBf16, kBf16}),
    [](const auto& test) { return std::string(test.param.name); });

// R01, R02, R03, R05, R11.
TEST_P(RefitLayouts, TheWholeModelArrivesOnEveryRank) {
  const Case& c = GetParam();
  for (const bool odd : {false, true}) {
    RefitSetup setup{.gtp = c.gtp,
                     .dp = c.dp,
                     .trained_dtype = c.trained_dtype,
                     .generated_dtype = c.generated_dtype,
                     .options = {.bucket_bytes = 30000}};
    setup.trained = odd ? odd_config(c.trained_tied) : even_config(c.trained_tied);
    setup.generated = odd ? odd_config(c.generated_tied) : even_config(c.generated_tied);
    std::mutex mutex;
    std::vector<RefitReport> reports;
    run_ranks(setup.world_size(), [&](World& world) {
      RefitRank rank(world, setup);
      const Code code = make_code(rank.policy.specs());
      fill_coded(rank.policy, code);
      const uint64_t version = rank.generation.version();
      const RefitReport report = rank.refit();
      CHECK(count_wrong(rank.generation, with_tied_head(code, c.trained_tied)) == 0);
      CHECK(count_nan(rank.generation) == 0);
      CHECK(report.fingerprint_ok());
      CHECK(rank.generation.version() > version, "caches would not notice");
      // Every element was NaN before, so every one changed; then none.
      CHECK(report.changed_elements == num_elements(rank.generation.specs()));
      CHECK(report.bytes == num_elements(rank.generation.specs()) *
                                static_cast<int64_t>(dtype_size_bytes(c.generated_dtype)));
      const RefitReport again = rank.refit();
      CHECK(again.changed_elements == 0 && again.fingerprint_ok());
      CHECK(again.destination_fingerprint == report.destination_fingerprint);
      const std::lock_guard lock(mutex);
      reports.push_back(report);
    });
    ASSERT_EQ(reports.size(), static_cast<size_t>(setup.world_size()));
    for (const RefitReport& report : reports) {
      EXPECT_EQ(report.source_fingerprint, reports.front().source_fingerprint);
      EXPECT_EQ(report.destination_fingerprint, reports.front().destination_fingerprint);
      EXPECT_GT(report.num_windows, c.gtp > 1 ? 1 : 0);
    }
  }
}

// R15. The counters prove that the path ran: what a rank lacks came from elsewhere, no more and no
// less.
TEST_F(RefitTest, RemoteBytesAreWhatARankLacks) {
  for (const auto& [gtp, wire] : {std::pair{2, kF32}, std::pair{3, kF32}, std::pair{3, kBf16}}) {
    RefitSetup setup{.gtp = gtp};
    setup.generated_dtype = wire;
    run_ranks(gtp, [&, wire = wire](World& world) {
      RefitRank rank(world, setup);
      fill_coded(rank.policy, make_code(rank.policy.specs()));
      int64_t lacking = num_elements(rank.policy.specs());
      grpo::testing::for_each_region(
          rank.policy, [&](ParameterId, const LogicalTensor&, const ShardRegion& region,
                           const Tensor&) { lacking -= region.num_rows * region.num_cols; });
      const int64_t sent_before = rank.world().counters().sent_bytes;
      const RefitReport report = rank.refit();
      CHECK(lacking > 0);
      CHECK(report.remote_bytes == lacking * static_cast<int64_t>(dtype_size_bytes(wire)));
      CHECK(rank.world().counters().sent_bytes > sent_before);
      CHECK(rank.policy.counters().gathers == 0, "refit must not gather whole weights");
    });
  }
}

TEST_F(RefitTest, ChangedElementsAreCountedExactly) {
  RefitSetup setup;
  setup.generated = odd_config(false);  // the embedding arrives twice
  run_ranks(2, [&](World& world) {
    RefitRank rank(world, setup);
    fill_coded(rank.policy, make_code(rank.policy.specs()));
    rank.refit();
    const auto changes = [](int64_t row, int64_t col) { return (row + col) % 7 == 0; };
    change_elements(rank.policy, [&](const std::string& tensor, int64_t row, int64_t col,
                                     float value) {
      const bool is_chosen = tensor == "model.embed_tokens.weight" || tensor == "model.norm.weight";
      return is_chosen && changes(row, col) ? -5.0f : value;
    });
    int64_t changed_embeddings = 0;
    int64_t changed_norms = 0;
    for (int64_t row = 0; row < 131; ++row) {
      for (int64_t col = 0; col < 48; ++col) changed_embeddings += changes(row, col) ? 1 : 0;
    }
    for (int64_t row = 0; row < 48; ++row) changed_norms += changes(row, 0) ? 1 : 0;
    CHECK(rank.refit().changed_elements == 2 * changed_embeddings + changed_norms);
  });
}

// R11. A difference below the destination's resolution is none.
TEST_F(RefitTest, ValuesAreRoundedToTheDestination) {
  RefitSetup setup;
  setup.generated_dtype = kBf16;
  run_ranks(2, [&](World& world) {
    RefitRank rank(world, setup);
    const Code code = make_code(rank.policy.specs());
    const Code nearby = [&](const std::string& tensor, int64_t row, int64_t col) {
      return (code(tensor, row, col) + 1.0f) * (1.0f + 1e-4f);
    };
    const Code rounded = [&](const std::string& tensor, int64_t row, int64_t col) {
      return static_cast<float>(Bfloat16(nearby(tensor, row, col)));
    };
    fill_coded(rank.policy, rounded);
    rank.refit();
    fill_coded(rank.policy, nearby);
    const RefitReport report = rank.refit();
    CHECK(report.changed_elements == 0 && report.fingerprint_ok());
    CHECK(count_wrong(rank.generation, rounded) == 0);
  });
}

// R05.
TEST_F(RefitTest, ATiedModelKeepsASeparateHeadUpToDate) {
  RefitSetup setup;
  setup.generated = odd_config(false);
  run_ranks(2, [&](World& world) {
    RefitRank rank(world, setup);
    for (int64_t step = 0; step < 3; ++step) {
      const Code code = make_code(rank.policy.specs(), 11 * step);
      fill_coded(rank.policy, code);
      CHECK(rank.refit().fingerprint_ok());
      CHECK(count_wrong(rank.generation, with_tied_head(code, true)) == 0, "step {}", step);
    }
  });
}

// R05.
TEST_F(RefitTest, AnUntiedModelForATiedOneIsRefused) {
  RefitSetup setup;
  setup.trained = odd_config(false);
  EXPECT_THROW(run_ranks(2, [&](World& world) { RefitRank rank(world, setup); }), ConfigError);
}

// R09. 24 thousand messages' worth of tasks: far above what one group of sends can hold.
TEST_F(RefitTest, ThousandsOfRowTasksFinish) {
  for (const int gtp : {2, 4}) {
    RefitSetup setup{.trained = even_config(), .generated = even_config(), .gtp = gtp};
    setup.trained.num_layers = setup.generated.num_layers = 32 / gtp;
    setup.options = {.bucket_bytes = 1 << 16, .max_task_rows = 1};
    run_ranks(gtp, [&](World& world) {
      RefitRank rank(world, setup);
      CHECK(rank.plan.tasks().size() > 24000u, "{} tasks", rank.plan.tasks().size());
      const Code code = make_code(rank.policy.specs());
      fill_coded(rank.policy, code);
      CHECK(rank.refit().fingerprint_ok());
      CHECK(count_wrong(rank.generation, code) == 0);
    });
  }
}

// Runs a refit that must fail on every rank; returns each rank's message.
std::vector<std::string> refusals(int num_ranks, const std::function<void(World&)>& fn) {
  std::vector<std::string> messages(static_cast<size_t>(num_ranks));
  EXPECT_THROW(run_ranks(
                   num_ranks,
                   [&](World& world) {
                     try {
                       fn(world);
                     } catch (const Error& error) {
                       messages[static_cast<size_t>(world.rank())] = error.what();
                       throw;
                     }
                   },
                   std::chrono::seconds(5)),
               Error);
  return messages;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// R10.
TEST_F(RefitTest, PlansThatDifferAreAnErrorOnEveryRank) {
  const auto messages = refusals(3, [](World& world) {
    RefitSetup setup{.gtp = 3};
    if (world.rank() == 1) setup.options.bucket_bytes = 4096;
    RefitRank(world, setup).refit();
  });
  for (const std::string& message : messages) EXPECT_TRUE(contains(message, "plan")) << message;
}

// R11.
TEST_F(RefitTest, AChangedDtypeIsRefused) {
  const auto messages = refusals(2, [](World& world) {
    RefitRank planned(world, {});
    RefitSetup setup;
    setup.trained_dtype = kBf16;
    RefitRank changed(world, setup, planned);
    parallel::refit(planned.plan, changed.policy, changed.generation, changed.world());
  });
  for (const std::string& message : messages) EXPECT_TRUE(contains(message, "bfloat16")) << message;
}

// R10.
TEST_F(RefitTest, StoresOfAnotherLayoutOrModelAreRefused) {
  RefitSetup replicated{.gtp = 1, .dp = 2};
  RefitSetup even{.trained = even_config(), .generated = even_config()};
  for (const RefitSetup& other : {replicated, even}) {
    const auto messages = refusals(2, [&](World& world) {
      RefitRank planned(world, {});
      RefitRank changed(world, other, planned);
      parallel::refit(planned.plan, changed.policy, planned.generation, planned.world());
    });
    for (const std::string& message : messages) {
      EXPECT_TRUE(contains(message, "another layout of 'policy'")) << message;
    }
  }
  const auto messages = refusals(2, [&](World& world) {
    RefitRank planned(world, {});
    RefitRank changed(world, even, planned);
    parallel::refit(planned.plan, planned.policy, changed.generation, planned.world());
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, "another layout of 'generation'")) << message;
  }
}

// R10. Two trained models and a policy rebuilt under another layout, in one process.
TEST_F(RefitTest, SeveralPlansLiveSideBySide) {
  run_ranks(2, [](World& world) {
    RefitRank policy(world, {});
    RefitRank reference(world, {}, policy);
    const Code policy_code = make_code(policy.policy.specs());
    const Code reference_code = make_code(policy.policy.specs(), 100);
    fill_coded(policy.policy, policy_code);
    fill_coded(reference.policy, reference_code);
    CHECK(policy.refit().fingerprint_ok() && reference.refit().fingerprint_ok());
    CHECK(count_wrong(policy.generation, policy_code) == 0);
    CHECK(count_wrong(reference.generation, reference_code) == 0);
    RefitRank rebuilt(world, {.gtp = 1, .dp = 2}, policy);
    const Code rebuilt_code = make_code(policy.policy.specs(), 50);
    fill_coded(rebuilt.policy, rebuilt_code);
    CHECK(parallel::refit(rebuilt.plan, rebuilt.policy, policy.generation, policy.world())
              .fingerprint_ok());
    CHECK(count_wrong(policy.generation, rebuilt_code) == 0);
    CHECK(count_wrong(reference.generation, reference_code) == 0);
  });
}

// R13.
TEST_F(RefitTest, FiftyRefitsKeepMemoryConstant) {
  run_ranks(2, [](World& world) {
    RefitRank rank(world, {});
    fill_coded(rank.policy, make_code(rank.policy.specs()));
    rank.refit();
    const size_t live = rank.memory->allocator.live_bytes();
    const size_t peak = rank.memory->allocator.peak_bytes_by_phase().at("setup");
    for (int i = 0; i < 50; ++i) rank.refit();
    CHECK(rank.memory->allocator.live_bytes() == live);
    CHECK(rank.memory->allocator.peak_bytes_by_phase().at("setup") == peak);
  });
}

}  // namespace
}  // namespace grpo::parallel
