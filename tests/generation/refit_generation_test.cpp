// From a trained, sharded model through refit to its completions: what the whole chain must keep
// and must notice.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "model/core/host_transfer.h"
#include "parallel/refit/refit.h"
#include "tests/generation/engine_fixture.h"
#include "tests/parallel/coded_weights.h"
#include "tests/parallel/late_weights.h"
#include "tests/policy_fixture.h"

namespace grpo::generation {
namespace {

using grpo::testing::Delay;
using grpo::testing::delays_for;
using grpo::testing::fill_lively;
using grpo::testing::odd_config;
using grpo::testing::RankContext;
using grpo::testing::run_ranks;
using grpo::testing::TestModel;

const Schedule kSchedule{.max_batch_size = 4, .page_size_tokens = 3};

// One rank of a sharded policy with its generation model.
class TrainedRank {
 public:
  TrainedRank(parallel::World& world, DType dtype, int dp = 1, Delay delay = Delay::kNone)
      : TrainedRank(world, dtype, dp, delay, std::make_shared<RankContext>(world)) {}
  // In the memory of another: a world attaches one device at a time.
  TrainedRank(parallel::World& world, DType dtype, const TrainedRank& neighbour)
      : TrainedRank(world, dtype, 1, Delay::kNone, neighbour.memory) {}

  parallel::RefitReport refit() {
    return parallel::refit(plan, policy.store, generation.store,
                           generation.store.groups().world.communicator());
  }

  std::vector<Completion> generate(
      const std::function<void(int64_t, int64_t)>& progress = ignore_progress) {
    return engine.generate(make_requests(2), draws, memory->ctx, progress);
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
                           .kept = c.kept.view()});
      for (const uint32_t bits : bits_of(c.logprobs)) stored.push_back(bits);
    }
    const model::PackedBatch batch(sequences, memory->allocator);
    const SamplingParams params = draws;
    const std::vector<uint32_t> scored =
        bits_of(testing::score(policy.transformer, batch, params.filter.inv_temperature(), nullptr,
                               memory->ctx)
                    .processed);
    int64_t mismatches = 0;
    for (size_t i = 0; i < stored.size(); ++i) mismatches += scored[i] != stored[i] ? 1 : 0;
    return mismatches;
  }

  std::shared_ptr<RankContext> memory;
  parallel::Mesh mesh;
  TestModel policy;
  TestModel generation;
  parallel::RefitPlan plan;
  Engine engine;
  Draws draws{.temperature = 0.7, .top_k = 5, .top_p = 0.9};

 private:
  TrainedRank(parallel::World& world, DType dtype, int dp, Delay delay,
              std::shared_ptr<RankContext> shared_memory)
      : memory(std::move(shared_memory)),
        mesh(1, world.size() / dp, dp),
        policy(*memory, odd_config(),
               parallel::delay_all(parallel::make_training_groups(world, mesh, 16), delay,
                                   memory->allocator),
               dtype),
        generation(
            *memory, odd_config(),
            parallel::delay_all(parallel::make_generation_groups(world), delay, memory->allocator),
            dtype),
        plan({.specs = policy.parameters.specs,
              .coordinates = parallel::training_coordinates(mesh, 16),
              .dtype = dtype},
             {.specs = generation.parameters.specs,
              .coordinates = parallel::whole_model_coordinates(world.size()),
              .dtype = dtype},
             {}),
        engine(generation.transformer, kSchedule, memory->allocator),
        guard_(*memory->attachment) {
    generation.store.poison_weights();
  }

  parallel::DeviceFailureGuard guard_;
};

// A forward of a generation model, recorded when it comes again. The host waits for nothing until
// it asks for the logits.
class QueuedForward {
 public:
  QueuedForward(TestModel& model, RankContext& memory)
      : batch_(make_batch(memory.allocator)),
        rows_{.tokens = batch_.tokens,
              .positions = batch_.positions,
              .kv = {.keys = {},
                     .values = {},
                     .query_offsets = batch_.query_offsets,
                     .context_lengths = batch_.context_lengths,
                     .page_first_slot = batch_.page_first_slot,
                     .page_size_tokens = num_tokens(),
                     .max_query_rows = num_tokens(),
                     .max_context_tokens = num_tokens()},
              .keys = {},
              .values = {},
              .logit_rows = {}},
        graphs_(model.transformer),
        ctx_(memory.ctx) {
    const auto take = [&](DType dtype, const Shape& shape) {
      return owned_.emplace_back(memory.allocator, "test", dtype, shape).view();
    };
    for (int64_t layer = 0; layer < model.config.num_layers; ++layer) {
      const Shape cache{num_tokens(), model.config.num_kv_heads, model.config.head_dim};
      rows_.keys.push_back(take(model.store.dtype(), cache));
      rows_.values.push_back(take(model.store.dtype(), cache));
    }
    rows_.logit_rows = take(DType::kInt32, {1});
    copy_from_host<int32_t>(rows_.logit_rows,
                            std::vector<int32_t>{static_cast<int32_t>(num_tokens()) - 1});
    logits_ = take(DType::kFloat32, {1, model.config.vocab_size});
  }

  void queue() { graphs_.run(logits_, rows_, ctx_); }
  std::vector<uint32_t> logits() const { return bits_of(to_host<float>(logits_)); }
  int64_t num_launches() const { return graphs_.num_launches(); }

 private:
  static model::PackedBatch make_batch(Allocator& allocator) {
    const std::vector<int32_t> tokens = {3, 77, 12, 100, 45, 9, 9, 60};
    const model::PackedSequence sequence{
        .tokens = tokens, .first_target = static_cast<int64_t>(tokens.size()), .kept = {}};
    return model::PackedBatch({&sequence, 1}, allocator);
  }
  int64_t num_tokens() const { return batch_.tokens.size(0); }

  model::PackedBatch batch_;
  std::vector<OwnedTensor> owned_;
  model::CachedRows rows_;
  Tensor logits_;  // [1, V]
  ForwardGraphs graphs_;
  OpContext& ctx_;
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

// R01, R02, R15. Over several "steps" of training: the sharded policy scores what the refitted
// model drew, to the bit.
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

// R15. The check above can fail: one row of one shard changed after refit, or refit forgotten.
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

// R06, R08. After a refit nothing of the old weights is left: a cold engine draws the same.
TEST_P(RefitGeneration, ARefittedEngineEqualsACold) {
  run_ranks(2, [&](parallel::World& world) {
    TrainedRank warm(world, GetParam());
    fill_lively(warm.policy.store, 1);
    warm.refit();
    const std::string old = describe(warm.generate());
    fill_lively(warm.policy.store, 2);
    warm.refit();
    TrainedRank cold(world, GetParam(), warm);
    fill_lively(cold.policy.store, 2);
    cold.refit();
    const std::string expected = describe(cold.generate());
    CHECK(describe(warm.generate()) == expected);
    CHECK(old != expected);
  });
}

// R08, R12.
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

// R14. V = 131 is stored as 192 rows over 3 ranks and 160 over 2: what the 61 or 29 pad rows hold
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
        for (const parallel::ShardRegion& region : rank.policy.store.layout(id).regions) {
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

// Decode steps recorded before a refit read the refitted weights, though other engines took and
// gave back memory meanwhile.
TEST_P(RefitGeneration, R07_RecordedStepsReadTheRefittedWeights) {
  run_ranks(2, [&](parallel::World& world) {
    TrainedRank rank(world, GetParam());
    const bool records = rank.memory->ctx.device.kind == DeviceKind::kCuda;
    Schedule unrecorded = kSchedule;
    unrecorded.enforce_eager = true;
    for (uint64_t step = 0; step < 4; ++step) {
      fill_lively(rank.policy.store, 30 + step);
      CHECK(rank.refit().fingerprint_ok());
      Engine eager(rank.generation.transformer, unrecorded, rank.memory->allocator);
      const std::string expected =
          describe(eager.generate(make_requests(2), rank.draws, rank.memory->ctx, ignore_progress));
      const int64_t launches = rank.engine.counters().graph_launches;
      const auto completions = rank.generate();
      CHECK(describe(completions) == expected, "step {}", step);
      CHECK(rank.num_mismatches(completions) == 0, "step {}", step);
      CHECK((rank.engine.counters().graph_launches > launches) == records);
    }
  });
}

// A forward that still waits for the device when a refit begins reads the old weights alone.
TEST_P(RefitGeneration, R12_AQueuedForwardReadsOneVersion) {
  for (const Delay delay : delays_for(2)) {
    run_ranks(2, [&](parallel::World& world) {
      TrainedRank rank(world, GetParam(), 1, delay);
      QueuedForward forward(rank.generation, *rank.memory);
      const auto logits_after_refit = [&] {
        CHECK(rank.refit().fingerprint_ok());
        forward.queue();
        return forward.logits();
      };
      fill_lively(rank.policy.store, 2);
      parallel::LateWeights late(rank.policy.store);
      const std::vector<uint32_t> wanted_new = logits_after_refit();
      fill_lively(rank.policy.store, 1);
      const std::vector<uint32_t> wanted_old = logits_after_refit();
      CHECK(wanted_new != wanted_old);
      for (int round = 0; round < 4; ++round) {
        fill_lively(rank.policy.store, 1);
        rank.refit();
        late.write();
        forward.queue();  // behind the late work
        CHECK(rank.refit().fingerprint_ok());
        CHECK(forward.logits() == wanted_old, "round {}", round);
        forward.queue();
        CHECK(forward.logits() == wanted_new, "round {}", round);
      }
      CHECK((forward.num_launches() > 0) == (rank.memory->ctx.device.kind == DeviceKind::kCuda));
    });
  }
}

// Training, refit and generation with the streams of the training side late: the same weights, the
// same draws.
TEST_P(RefitGeneration, R12_AStepWithLateStreamsIsRefittedWhole) {
  const auto all =
      testing::make_rollout({{5, 7}, {3, 20}, {9, 1}, {2, 30}}, odd_config().vocab_size, 11);
  const auto signals = testing::make_signals(all, 4.0);
  const rl::UpdateOptions options{.inv_temperature = 1.0f,
                                  .micro_batches = {.max_tokens = 40, .multiple = 1},
                                  .learning_rate = 0.1,
                                  .max_grad_norm = 1.0,
                                  .filter_check = nullptr};
  for (const int dp : {1, 2}) {
    std::string undelayed;
    for (const Delay delay : delays_for(2)) {
      SCOPED_TRACE(fmt::format("dp {}, {}", dp, testing::delay_name(delay)));
      std::array<std::string, 2> drawn;
      run_ranks(2, [&](parallel::World& world) {
        TrainedRank rank(world, GetParam(), dp, delay);
        auto sequences = all;
        fill_lively(rank.policy.store, 20);
        rank.refit();
        rl::Optimizer optimizer(testing::plain_sgd(), rank.policy.store, rank.memory->allocator);
        for (int step = 0; step < 3; ++step) {
          rl::update_policy(testing::actor_loss(), rank.policy.transformer, rank.policy.store,
                            optimizer, sequences, signals, options, rank.memory->ctx);
          const auto report = rank.refit();
          CHECK(report.fingerprint_ok() && report.changed_elements > 0);
          const auto completions = rank.generate();
          CHECK(rank.num_mismatches(completions) == 0, "step {}", step);
          drawn[static_cast<size_t>(world.rank())] += describe(completions);
        }
      });
      EXPECT_EQ(drawn[0], drawn[1]);
      if (delay == Delay::kNone) undelayed = drawn[0];
      EXPECT_EQ(drawn[0], undelayed);
    }
  }
}

}  // namespace
}  // namespace grpo::generation
