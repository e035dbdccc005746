// What a sharded store holds beside other models in one process, and what inference sees of it.
#include <gtest/gtest.h>

#include <cmath>

#include "generation/engine.h"
#include "model/core/host_transfer.h"
#include "parallel/store/sharded_parameter_store.h"
#include "rl/loop/sequence_scorer.h"
#include "tests/policy_fixture.h"

namespace grpo::parallel {
namespace {

using testing::make_rollout;
using testing::NamedValues;
using testing::PolicyCase;
using testing::PolicyOutcome;
using testing::RankContext;
using testing::run_ranks;
using testing::TestModel;

TEST(GtpStorage, G01_BiasIsWholeOnEveryPeer) {
  run_ranks(2, [](World& world) {
    RankContext rank(world);
    const TestModel model(rank, testing::odd_config(),
                          make_training_groups(world, Mesh(1, 2, 1), 16));
    const ParameterId bias = model.parameters.layers[0].qkv_bias;
    EXPECT_EQ(model.store.shard(bias).num_elements(), 80);  // not 40, not 48
    EXPECT_EQ(model.store.gradient_shard(bias).num_elements(), 80);
    EXPECT_EQ(model.store.shard(model.parameters.layers[0].qkv_weight).shape(), (Shape{48, 48}));
  });
}

TEST(GtpStorage, G01_BiasesStayEqualOnPeersThroughThreeSteps) {
  PolicyCase policy_case{.config = testing::odd_config(),
                         .sequences = make_rollout({{3, 9}, {5, 4}, {2, 7}}, 131, 4),
                         .signals = {}};
  policy_case.signals = testing::make_signals(policy_case.sequences, 4.0);
  policy_case.options.learning_rate = 0.1;
  policy_case.num_updates = 3;
  auto reference = testing::train_on_one_rank(policy_case);
  for (const testing::Delay delay : testing::delays_for(2)) {
    SCOPED_TRACE(testing::delay_name(delay));
    policy_case.delay = delay;
    const PolicyOutcome outcome =
        train_policy(policy_case, {2, 1});  // demands equal bits on both peers
    testing::expect_weight_parity(outcome, reference.beside(2));
    for (size_t i = 0; i < outcome.weights.size(); ++i) {
      if (outcome.weights[i].first.ends_with("v_proj.bias")) {
        EXPECT_NE(outcome.weights[i].second, outcome.initial_weights[i].second);
      }
    }
  }
}

TEST(GtpStorage, G05_PaddingIsZeroAndMayBeAWholeRank) {
  run_ranks(4, [](World& world) {
    RankContext rank(world);
    TestModel model(rank, testing::odd_config(), make_training_groups(world, Mesh(1, 4, 1), 16));
    testing::fill_lively(model.store, 7);
    for (size_t i = 0; i < model.store.specs().size(); ++i) {
      const auto id = static_cast<ParameterId>(i);
      const ShardLayout& layout = model.store.layout(id);
      const Tensor shard = model.store.shard(id);
      EXPECT_EQ(shard.shape(), (Shape{layout.shard_rows, layout.cols}));
      int64_t real_rows = 0;
      for (const ShardRegion& region : layout.regions) real_rows += region.num_rows;
      for (const float padding : to_host<float>(shard.rows(real_rows, shard.size(0) - real_rows))) {
        ASSERT_EQ(padding, 0.0f);
      }
      const bool is_matrix = model.store.specs()[i].gtp == GtpPlacement::kSharded;
      if (world.rank() == 3 && is_matrix && id != model.parameters.layers[0].gate_up_weight &&
          id != model.parameters.layers[1].gate_up_weight) {
        EXPECT_EQ(real_rows, 0) << model.store.specs()[i].name;
      }
    }
  });
}

// Distinct bf16 weights, cheap to make.
void fill_distinct(const ShardedParameterStore& store) {
  testing::for_each_region(store, [](ParameterId, const LogicalTensor& part,
                                     const ShardRegion& region, const Tensor& shard) {
    HostDraft draft(shard.rows(region.stored_row, region.num_rows));
    for (int64_t i = 0; i < region.num_rows * region.num_cols; ++i) {
      const auto place =
          static_cast<uint64_t>(region.logical_row * region.num_cols + i) + part.name.size();
      draft.view().data<Bfloat16>()[i] =
          Bfloat16(static_cast<float>(place * 2654435761u % 251) / 251.0f - 0.5f);
    }
    draft.commit();
  });
}

// The vocabulary of Qwen2.5-0.5B: a shard of (75968, D) behind a head of 151936 logits.
TEST(GtpStorage, G02_ATiedHeadAcceptsItsShardedWeight) {
  model::ModelConfig config = testing::even_config(true);
  config.vocab_size = 151936;
  config.num_layers = 1;
  config.hidden_size = 32;
  config.head_dim = 8;
  const std::vector<int32_t> tokens = {151935, 75967, 75968, 0, 151643};
  run_ranks(2, [&](World& world) {
    RankContext rank(world);
    const auto logits = [&](ProcessGroups groups) {
      const int gtp = groups.gtp_remat.size();
      TestModel model(rank, config, std::move(groups), DType::kBfloat16);
      EXPECT_EQ(model.store.shard(model.parameters.head).size(0), 151936 / gtp);
      fill_distinct(model.store);
      return testing::logits_of(model, tokens, rank.ctx);
    };
    const std::vector<float> expected = logits(testing::solo_groups());
    ASSERT_EQ(expected.size(), tokens.size() * 151936);
    EXPECT_EQ(logits(make_training_groups(world, Mesh(1, 2, 1), 16)), expected);
  });
}

TEST(GtpStorage, G03_AnInferenceModelBesideATrainedOneIsWholeAndNeverGathers) {
  run_ranks(2, [](World& world) {
    RankContext rank(world);
    rank.allocator.set_poison_scratch(true);
    const auto config = testing::odd_config();
    TestModel trained(rank, config, make_training_groups(world, Mesh(1, 2, 1), 16));
    const ProcessGroups groups = make_generation_groups(world);
    TestModel inference(rank, config, groups);
    testing::fill_lively(trained.store, 7);
    testing::fill_lively(inference.store, 7);
    for (size_t i = 0; i < inference.store.specs().size(); ++i) {
      const ParameterSpec& spec = inference.store.specs()[i];
      EXPECT_EQ(inference.store.shard(static_cast<ParameterId>(i)).shape(),
                (Shape{spec.rows(), spec.cols()}));
    }
    generation::Engine engine(inference.transformer,
                              {.max_sequence_tokens = 40,
                               .max_batch_size = 2,
                               .page_size_tokens = 4,
                               .prefill_chunk_tokens = 3},
                              rank.allocator);
    const generation::GenerationRequest request{
        .tag = 0, .draw_index = 0, .prompt_tokens = {5, 130, 77, 9}, .sample_indices = {0, 1, 2}};
    const generation::SamplingParams params{.filter = {},
                                            .greedy = false,
                                            .max_new_tokens = 20,
                                            .stop_token_ids = {},
                                            .ignore_stop = true,
                                            .seed = 1,
                                            .split = generation::DrawSplit::kTrain,
                                            .stores_kept_tokens = false};
    const auto completions =
        engine.generate({&request, 1}, params, rank.ctx, [](int64_t, int64_t) {});
    EXPECT_EQ(inference.store.counters().gathers, 0);
    EXPECT_EQ(groups.world.communicator().counters().num_collectives, 0);
    EXPECT_EQ(trained.store.counters().gathers, 0);  // the trained model did not run

    // The same tokens under the trained, sharded model: the same bits.
    std::vector<rl::RolloutSequence> sequences;
    for (const generation::Completion& completion : completions) {
      rl::RolloutSequence sequence{};
      sequence.prompt_tokens = request.prompt_tokens;
      sequence.response_tokens = completion.tokens;
      sequences.push_back(sequence);
    }
    const rl::SequenceLogprobs scores =
        rl::score_sequences(trained.transformer, trained.store.groups(), sequences,
                            {.inv_temperature = 1.0f,
                             .max_tokens = 48,
                             .applies_filter = false,
                             .filter_check = nullptr},
                            rank.ctx);
    for (size_t s = 0; s < completions.size(); ++s) {
      EXPECT_EQ(scores.processed[s], completions[s].logprobs);
    }
    EXPECT_GT(trained.store.counters().gathers, 0);
    EXPECT_EQ(inference.store.counters().gathers, 0);
  });
}

void take_turns(World& world, testing::Delay delay) {
  const auto config = testing::even_config();
  auto sequences = make_rollout({{3, 9}, {5, 4}, {2, 0}, {1, 12}}, config.vocab_size, 4);
  const rl::ScorerOptions options{
      .inv_temperature = 1.0f, .max_tokens = 16, .applies_filter = false, .filter_check = nullptr};
  RankContext rank(world);
  rank.allocator.set_poison_scratch(true);
  const auto delayed_groups = [&] {
    return testing::delay(make_training_groups(world, Mesh(1, 2, 1), 16), delay, rank.allocator);
  };
  TestModel policy(rank, config, delayed_groups());
  TestModel reference(rank, config, delayed_groups());
  testing::fill_lively(policy.store, 7);
  testing::fill_lively(reference.store, 8);
  const auto score = [&](TestModel& model) {
    const GtpCounters before = model.store.counters();
    auto result =
        rl::score_sequences(model.transformer, model.store.groups(), sequences, options, rank.ctx);
    EXPECT_GT(model.store.counters().gathers, before.gathers);
    return result.processed;
  };
  const auto solo = [&](uint64_t seed) {
    TestModel alone(rank, config, testing::solo_groups());
    testing::fill_lively(alone.store, seed);
    return rl::score_sequences(alone.transformer, alone.store.groups(), sequences, options,
                               rank.ctx)
        .processed;
  };
  const auto expected_policy = solo(7);
  const auto expected_reference = solo(8);
  ASSERT_NE(expected_policy, expected_reference);
  size_t live_bytes = 0;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(score(policy), expected_policy);
    EXPECT_EQ(score(reference), expected_reference);
    rl::NllLoss loss(10);
    const model::PackedBatch batch =
        rl::pack_rollout({&sequences[static_cast<size_t>(world.rank())]}, true, rank.allocator);
    policy.transformer.train(batch, 1.0f, loss, nullptr, rank.ctx);
    EXPECT_EQ(score(policy), expected_policy);
    // Every buffer is back in its pool: later rounds allocate nothing.
    if (round == 0) live_bytes = rank.allocator.live_bytes();
    EXPECT_EQ(rank.allocator.live_bytes(), live_bytes);
  }
}

// One model's pass must leave no trace in another's: A scores, B scores, A trains, A scores, three
// times.
TEST(GtpStorage, G09_PolicyAndReferenceTakeTurns) {
  for (const testing::Delay delay : testing::delays_for(2)) {
    run_ranks(2, [&](World& world) {
      SCOPED_TRACE(testing::delay_name(delay));
      take_turns(world, delay);
    });
  }
}

TEST(GtpStorage, WeightsThatWaitForARefitLookUnusable) {
  RankContext rank;
  ShardedParameterStore store(
      "generation", model::make_transformer_parameters(testing::odd_config(), 0.1f).specs,
      testing::solo_groups(), DType::kBfloat16, Gradients::kNone, rank.allocator);
  const uint64_t version = store.version();
  store.poison_weights();
  EXPECT_GT(store.version(), version);
  testing::for_each_region(
      store, [](ParameterId, const LogicalTensor& part, const ShardRegion&, const Tensor& shard) {
        for (const Bfloat16 value : to_host<Bfloat16>(shard)) {
          ASSERT_TRUE(std::isnan(static_cast<float>(value))) << part.name;
        }
      });
}

}  // namespace
}  // namespace grpo::parallel
