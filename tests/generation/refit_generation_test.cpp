// From a trained, sharded model through refit to its completions: what the whole chain must keep
// and must notice.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <mutex>

#include "model/core/host_transfer.h"
#include "parallel/refit.h"
#include "tests/generation/engine_fixture.h"
#include "tests/parallel/coded_weights.h"
#include "tests/run_ranks.h"

namespace grpo::generation {
namespace {

using grpo::testing::fill_lively;
using grpo::testing::odd_config;
using grpo::testing::RankContext;
using grpo::testing::run_ranks;
using grpo::testing::TestModel;

// One rank of a GTP-sharded policy with its generation model.
class TrainedRank {
 public:
  TrainedRank(parallel::World& world, DType dtype)
      : memory(world),
        mesh(1, world.size(), 1),
        policy(memory, odd_config(), parallel::make_training_groups(world, mesh, 16), dtype),
        generation(memory, odd_config(), parallel::make_generation_groups(world), dtype),
        plan({.specs = policy.parameters.specs,
              .coordinates = parallel::training_coordinates(mesh, 16),
              .dtype = dtype},
             {.specs = generation.parameters.specs,
              .coordinates = parallel::whole_model_coordinates(world.size()),
              .dtype = dtype},
             {}),
        engine(generation.transformer, Schedule{.max_batch_size = 4, .page_size_tokens = 3},
               memory.allocator) {
    generation.store.poison_weights();
  }

  parallel::RefitReport refit() {
    return parallel::refit(plan, policy.store, generation.store,
                           generation.store.groups().world.communicator());
  }

  std::vector<Completion> generate(
      const std::function<void(int64_t, int64_t)>& progress = ignore_progress) {
    return engine.generate(make_requests(2), draws, memory.ctx, progress);
  }

  // Tokens whose log-probability under the policy is not, bit for bit, the one that generation
  // stored.
  int64_t num_mismatches(const std::vector<Completion>& completions) {
    const auto requests = make_requests(2);
    std::vector<std::vector<int32_t>> tokens;
    std::vector<model::PackedSequence> sequences;
    std::vector<uint32_t> stored;
    tokens.reserve(completions.size());
    for (const Completion& c : completions) {
      const auto& prompt = requests[static_cast<size_t>(c.tag)].prompt_tokens;
      tokens.push_back(prompt);
      tokens.back().insert(tokens.back().end(), c.tokens.begin(), c.tokens.end());
      sequences.push_back({.tokens = tokens.back(),
                           .first_target = static_cast<int64_t>(prompt.size()),
                           .cuts = c.cuts});
      for (const uint32_t bits : bits_of(c.logprobs)) stored.push_back(bits);
    }
    const model::PackedBatch batch(sequences, memory.allocator);
    const SamplingParams params = draws;
    const std::vector<uint32_t> scored =
        bits_of(testing::score(policy.transformer, batch, params.filter.inv_temperature(), nullptr,
                               memory.ctx)
                    .processed);
    int64_t mismatches = 0;
    for (size_t i = 0; i < stored.size(); ++i) mismatches += scored[i] != stored[i] ? 1 : 0;
    return mismatches;
  }

  RankContext memory;
  parallel::Mesh mesh;
  TestModel policy;
  TestModel generation;
  parallel::RefitPlan plan;
  Engine engine;
  Draws draws{.temperature = 0.7, .top_k = 5, .top_p = 0.9};
};

void overwrite_row(const Tensor& shard, int64_t row, float value) {
  HostDraft draft(shard.rows(row, 1));
  for (int64_t c = 0; c < shard.size(1); ++c) parallel::write_value(draft.view(), c, value);
  draft.commit();
}

class RefitGeneration : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { ::alarm(60); }
  void TearDown() override { ::alarm(0); }
};

INSTANTIATE_TEST_SUITE_P(All, RefitGeneration, ::testing::Values(DType::kFloat32, DType::kBfloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

// Over several "steps" of training: the sharded policy scores what the refitted model drew, to the
// bit.
TEST_P(RefitGeneration, TheShardedPolicyScoresTheSameBits) {
  for (const int num_ranks : {2, 3}) {
    run_ranks(num_ranks, [&](parallel::World& world) {
      TrainedRank rank(world, GetParam());
      for (uint64_t step = 0; step < 2; ++step) {
        fill_lively(rank.policy.store, 20 + step);
        const auto report = rank.refit();
        CHECK(report.fingerprint_ok() && report.remote_bytes > 0 && report.changed_elements > 0);
        const int64_t gathers = rank.policy.store.counters().gathers;
        const auto completions = rank.generate();
        CHECK(rank.policy.store.counters().gathers == gathers, "generation used the sharded model");
        CHECK(rank.generation.store.counters().gathers == 0);
        CHECK(completions.size() == 10u);
        CHECK(rank.num_mismatches(completions) == 0, "step {}", step);
        CHECK(rank.policy.store.counters().gathers > gathers, "scoring gathered nothing");
      }
    });
  }
}

// The check above can fail: one row of one shard changed after refit, or refit forgotten.
TEST_P(RefitGeneration, WeightsThatDifferAreNoticed) {
  run_ranks(2, [&](parallel::World& world) {
    TrainedRank rank(world, GetParam());
    fill_lively(rank.policy.store, 20);
    const uint64_t fingerprint = rank.refit().destination_fingerprint;
    if (world.rank() == 1) {
      const Tensor shard = rank.policy.store.shard(rank.policy.parameters.layers[0].o_weight);
      overwrite_row(shard, 0, 0.5f);
    }
    rank.policy.store.mark_weights_changed();
    CHECK(rank.num_mismatches(rank.generate()) > 0);
    const auto report = rank.refit();
    CHECK(report.changed_elements == odd_config().q_size());
    CHECK(report.destination_fingerprint != fingerprint);
    CHECK(rank.num_mismatches(rank.generate()) == 0);
  });
}

// After a refit nothing of the old weights is left: a cold engine draws the same.
TEST_P(RefitGeneration, ARefittedEngineEqualsACold) {
  run_ranks(2, [&](parallel::World& world) {
    TrainedRank warm(world, GetParam());
    fill_lively(warm.policy.store, 1);
    warm.refit();
    const std::string old = describe(warm.generate());
    fill_lively(warm.policy.store, 2);
    warm.refit();
    TrainedRank cold(world, GetParam());
    fill_lively(cold.policy.store, 2);
    cold.refit();
    const std::string expected = describe(cold.generate());
    CHECK(describe(warm.generate()) == expected);
    CHECK(old != expected);
  });
}

TEST_P(RefitGeneration, ARefitWhileSequencesRunIsNoticed) {
  run_ranks(2, [&](parallel::World& world) {
    TrainedRank rank(world, GetParam());
    fill_lively(rank.policy.store, 1);
    rank.refit();
    bool noticed = false;
    int num_calls = 0;
    try {
      rank.generate([&](int64_t, int64_t) {
        if (++num_calls == 3) rank.refit();
      });
    } catch (const InternalError& error) {
      noticed = std::string(error.what()).find("stale KV") != std::string::npos;
    }
    CHECK(noticed);
    CHECK(rank.num_mismatches(rank.generate()) == 0);
  });
}

TEST_P(RefitGeneration, NothingIsDrawnBeforeTheFirstRefit) {
  run_ranks(2, [&](parallel::World& world) {
    TrainedRank rank(world, GetParam());
    fill_lively(rank.policy.store, 1);
    bool refused = false;
    try {
      rank.generate();
    } catch (const NonFiniteError&) {
      refused = true;
    }
    CHECK(refused);
    rank.refit();
    CHECK(rank.num_mismatches(rank.generate()) == 0);
  });
}

// V = 131 is stored as 192 rows over 3 ranks and 160 over 2: what the 61 or 29 pad rows hold
// reaches neither side.
TEST_P(RefitGeneration, PaddingIsNeverSampledNorNormalizedOver) {
  for (const int num_ranks : {2, 3, 4}) {
    run_ranks(num_ranks, [&](parallel::World& world) {
      TrainedRank rank(world, GetParam());
      fill_lively(rank.policy.store, 5);
      rank.refit();
      const auto clean = rank.generate();
      int64_t num_padded = 0;
      for (size_t p = 0; p < rank.policy.parameters.specs.size(); ++p) {
        const auto id = static_cast<ParameterId>(p);
        const Tensor shard = rank.policy.store.shard(id);
        std::vector<bool> is_real(static_cast<size_t>(shard.size(0)), false);
        for (const parallel::Region& region : rank.policy.store.layout(id).regions) {
          for (int64_t r = 0; r < region.num_rows; ++r) {
            is_real[static_cast<size_t>(region.stored_row + r)] = true;
          }
        }
        for (int64_t row = 0; row < shard.size(0); ++row) {
          if (is_real[static_cast<size_t>(row)]) continue;
          ++num_padded;
          overwrite_row(shard, row, 1e30f);
        }
      }
      CHECK(num_padded > 0 || world.rank() + 1 < num_ranks);
      const auto report = rank.refit();
      CHECK(report.changed_elements == 0 && report.fingerprint_ok());
      const auto spoilt = rank.generate();
      CHECK(describe(spoilt) == describe(clean));
      for (const Completion& c : spoilt) {
        for (const int32_t token : c.tokens) CHECK(token >= 0 && token < 131);
      }
      CHECK(rank.num_mismatches(spoilt) == 0);
    });
  }
}

}  // namespace
}  // namespace grpo::generation
