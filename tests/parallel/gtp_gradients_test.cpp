// Gradients of whole models under GTP: every contribution arrives, once, whatever scratch memory
// held.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "model/core/counter_rng.h"
#include "model/core/host_transfer.h"
#include "rl/loop/policy_loss.h"
#include "rl/loop/sequence_scorer.h"
#include "tests/policy_fixture.h"

namespace grpo::parallel {
namespace {

using rl::RolloutSequence;
using testing::Delay;
using testing::Layout;
using testing::layout_name;
using testing::LogicalValues;
using testing::make_rollout;
using testing::NamedValues;
using testing::RankContext;
using testing::run_ranks;
using testing::TestModel;

using Passes =
    std::vector<std::vector<const RolloutSequence*>>;  // a list of packed sequences a pass

struct GradientCase {
  model::ModelConfig config;
  // By data rank and number of data ranks.
  std::function<Passes(int, int)> passes;
  bool poison = true;
  DType dtype = DType::kFloat32;
  std::function<void(ShardedParameterStore&)> fill = [](ShardedParameterStore& store) {
    testing::fill_lively(store, 7);
  };
  Delay delay = Delay::kNone;
};

// Groups of a layout whose collectives are delayed, on test_device().
ProcessGroups delayed_groups(World& world, const Layout& layout, Delay delay, RankContext& rank) {
  return testing::delay(make_training_groups(world, Mesh(1, layout.gtp_remat, layout.dp), 16),
                        delay, rank.allocator);
}

// Reduced gradients of the negative log-likelihood of all predicted tokens, and that GTP ran as
// scheduled. Runs where `num_device_ranks` ranks do: on devices, or for lack of them on the CPU.
NamedValues gradients_of(const GradientCase& gradient_case, const Layout& layout,
                         int num_device_ranks) {
  LogicalValues values(model::make_transformer_parameters(gradient_case.config, 0.1f).specs);
  run_ranks(layout.num_ranks(), [&](World& world) {
    SCOPED_TRACE(testing::delay_name(gradient_case.delay));
    testing::set_rank_of_this_thread(world.rank(), num_device_ranks);
    RankContext rank(world);
    rank.allocator.set_poison_scratch(gradient_case.poison);
    TestModel model(rank, gradient_case.config,
                    delayed_groups(world, layout, gradient_case.delay, rank), gradient_case.dtype);
    gradient_case.fill(model.store);
    const AxisGroup& data = model.store.groups().data;
    const Passes passes = gradient_case.passes(data.rank(), data.size());
    model.store.zero_gradients();
    for (const auto& sequences : passes) {
      const model::PackedBatch batch = rl::pack_rollout(sequences, true, rank.allocator);
      rl::NllLoss loss(16);
      model.transformer.train(batch, 1.0f, loss, nullptr, rank.ctx);
    }
    model.store.reduce_gradients();
    const auto expected = testing::expected_counters(
        model.store, model.transformer.train_schedule(true), static_cast<int64_t>(passes.size()));
    testing::expect_counters(model.store.counters(), expected);
    EXPECT_EQ(model.store.counters().gathers > 0, layout.gtp_remat > 1);
    EXPECT_EQ(model.store.counters().reduce_scatters > 0, layout.gtp_remat > 1);
    values.add_owned_gradients(model.store);
  });
  return values.take();
}

NamedValues gradients_of(const GradientCase& gradient_case, const Layout& layout) {
  return gradients_of(gradient_case, layout, layout.num_ranks());
}

testing::OneRank<NamedValues> gradients_of_one_rank(const GradientCase& gradient_case) {
  return testing::OneRank<NamedValues>([gradient_case](int num_device_ranks) {
    return gradients_of(gradient_case, {1, 1}, num_device_ranks);
  });
}

// A delay of any stream changes no bit.
void expect_unmoved_by_delays(GradientCase gradient_case, const Layout& layout,
                              const NamedValues& undelayed) {
  for (const Delay delay : testing::delays_for(layout.num_ranks())) {
    if (delay == Delay::kNone) continue;
    gradient_case.delay = delay;
    EXPECT_EQ(gradients_of(gradient_case, layout), undelayed) << testing::delay_name(delay);
  }
}

// Sequence i goes to data rank i modulo their number, a pass each; short ranks run dummies.
std::function<Passes(int, int)> dealt(const std::vector<RolloutSequence>& sequences) {
  return [&sequences](int rank, int num_ranks) {
    const size_t num_passes =
        (sequences.size() + static_cast<size_t>(num_ranks) - 1) / static_cast<size_t>(num_ranks);
    Passes passes(num_passes);
    for (size_t i = static_cast<size_t>(rank); i < sequences.size();
         i += static_cast<size_t>(num_ranks)) {
      passes[i / static_cast<size_t>(num_ranks)].push_back(&sequences[i]);
    }
    return passes;
  };
}

// The first half of the sequences to one replica and the second to the other, whose ranks share it.
std::function<Passes(int, int)> in_halves(const std::vector<RolloutSequence>& sequences) {
  return [&sequences](int rank, int num_ranks) {
    const auto gtp_remat = static_cast<size_t>(num_ranks) / 2;
    const size_t half = sequences.size() / 2;
    const size_t first = static_cast<size_t>(rank) / gtp_remat * half;
    Passes passes((half + gtp_remat - 1) / gtp_remat);
    for (size_t i = static_cast<size_t>(rank) % gtp_remat; i < half; i += gtp_remat) {
      passes[i / gtp_remat].push_back(&sequences[first + i]);
    }
    return passes;
  };
}

const std::vector<float>& tensor(const NamedValues& values, const std::string& name) {
  for (const auto& [one, data] : values) {
    if (one == name) return data;
  }
  throw InternalError("no tensor " + name);
}

void expect_close(const NamedValues& actual, const NamedValues& expected, double tolerance) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = testing::difference_norm(actual[i].second, expected[i].second);
    EXPECT_TRUE(difference <= tolerance * testing::norm(expected[i].second) + 1e-9)
        << expected[i].first << ": " << difference << " of " << testing::norm(expected[i].second);
  }
}

const std::vector<Layout> kLayouts = {{2, 1}, {3, 1}, {1, 2}, {2, 2}};
constexpr const char* kEmbedding = "model.embed_tokens.weight";

// fill_lively, but an untied head gets the embedding's values.
void fill_head_as_embedding(ShardedParameterStore& store) {
  testing::fill_lively(store, 7);
  testing::for_each_region(store, [](ParameterId, const LogicalTensor& part,
                                     const ShardRegion& region, const Tensor& shard) {
    if (part.name != "lm_head.weight") return;
    HostDraft draft(shard.rows(region.stored_row, region.num_rows));
    for (int64_t r = 0; r < region.num_rows; ++r) {
      for (int64_t c = 0; c < region.num_cols; ++c) {
        draft.view().data<float>()[r * region.num_cols + c] =
            0.1f * normal_at(7, hash_name(kEmbedding),
                             static_cast<uint64_t>(region.logical_row + r),
                             static_cast<uint64_t>(c));
      }
    }
    draft.commit();
  });
}

// The untied twin shows both halves of the tied matrix's gradient apart.
TEST(GtpGradients, D01_TiedGradientIsLookupPlusHead) {
  const auto sequences = make_rollout({{3, 9}, {5, 4}, {2, 7}, {4, 4}}, 256, 4);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout_name(layout));
    const GradientCase tied_case{.config = testing::even_config(true), .passes = dealt(sequences)};
    const NamedValues tied = gradients_of(tied_case, layout);
    expect_unmoved_by_delays(tied_case, layout, tied);
    const NamedValues apart = gradients_of({.config = testing::even_config(false),
                                            .passes = dealt(sequences),
                                            .fill = fill_head_as_embedding},
                                           layout);
    const std::vector<float>& both = tensor(tied, kEmbedding);
    const std::vector<float>& lookup = tensor(apart, kEmbedding);
    const std::vector<float>& head = tensor(apart, "lm_head.weight");
    std::vector<float> sum(both.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = lookup[i] + head[i];
    EXPECT_LT(testing::difference_norm(both, sum), 1e-6 * testing::norm(sum));
    EXPECT_GT(testing::norm(lookup), 1e-3 * testing::norm(head));
    // A row whose token is absent gets exactly the head's part.
    std::vector<bool> is_present(256, false);
    for (const RolloutSequence& sequence : sequences) {
      for (const int32_t token : sequence.prompt_tokens)
        is_present[static_cast<size_t>(token)] = true;
      for (const int32_t token : sequence.response_tokens)
        is_present[static_cast<size_t>(token)] = true;
    }
    size_t num_absent = 0;
    for (size_t row = 0; row < 256; ++row) {
      if (is_present[row]) continue;
      ++num_absent;
      for (size_t i = row * 64; i < (row + 1) * 64; ++i)
        ASSERT_EQ(both[i], head[i]) << "row " << row;
    }
    EXPECT_GT(num_absent, 100u);
  }
}

TEST(GtpGradients, D05_SumsOverGtpAndDpEqualOneRanks) {
  const auto sequences = make_rollout({{3, 9}, {5, 4}, {2, 7}, {4, 4}, {1, 11}}, 131, 4);
  for (const bool tied : {true, false}) {
    const GradientCase gradient_case{.config = testing::odd_config(tied),
                                     .passes = dealt(sequences)};
    auto reference = gradients_of_one_rank(gradient_case);
    for (const Layout& layout : kLayouts) {
      SCOPED_TRACE(layout_name(layout));
      const NamedValues gradients = gradients_of(gradient_case, layout);
      expect_close(gradients, reference.beside(layout.num_ranks()), 2e-6);
      expect_unmoved_by_delays(gradient_case, layout, gradients);
    }
  }
}

// Micro-batch after micro-batch, whether one rank runs them in turn or gtp_remat ranks side by
// side.
TEST(GtpGradients, GtpChangesNoBitOfAGradient) {
  const auto sequences = make_rollout({{3, 9}, {5, 4}, {2, 7}, {4, 4}, {1, 11}, {6, 0}}, 131, 4);
  for (const bool tied : {true, false}) {
    for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
      const GradientCase gradient_case{
          .config = testing::odd_config(tied), .passes = dealt(sequences), .dtype = dtype};
      auto reference = gradients_of_one_rank(gradient_case);
      for (const int gtp_remat : {2, 3, 4}) {
        SCOPED_TRACE(fmt::format("gtp {}, {}, tied {}", gtp_remat, dtype_name(dtype), tied));
        EXPECT_EQ(gradients_of(gradient_case, {gtp_remat, 1}), reference.beside(gtp_remat));
      }
      // Beside replicas too; both where four ranks run.
      const GradientCase halves{
          .config = testing::odd_config(tied), .passes = in_halves(sequences), .dtype = dtype};
      EXPECT_EQ(gradients_of(halves, {2, 2}, 4), gradients_of(halves, {1, 2}, 4));
    }
  }
}

TEST(GtpGradients, D02_PoisonedScratchGivesTheBitsOfACleanRun) {
  // One micro-batch without a predicted token on every layout.
  const auto sequences = make_rollout({{3, 9}, {6, 0}, {5, 4}, {2, 7}, {1, 0}, {4, 4}}, 131, 4);
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    for (const Layout& layout : std::vector<Layout>{{1, 1}, {4, 1}, {2, 2}}) {
      if (dtype == DType::kBfloat16 && layout.gtp_remat == 4) continue;
      SCOPED_TRACE(layout_name(layout));
      GradientCase gradient_case{.config = testing::odd_config(),
                                 .passes = dealt(sequences),
                                 .poison = true,
                                 .dtype = dtype};
      const NamedValues poisoned = gradients_of(gradient_case, layout);
      expect_unmoved_by_delays(gradient_case, layout, poisoned);
      gradient_case.poison = false;
      EXPECT_EQ(poisoned, gradients_of(gradient_case, layout));
    }
  }
}

TEST(GtpGradients, N01_DummyPassesContributeExactlyZero) {
  const auto sequences = make_rollout({{3, 9}, {5, 4}, {2, 7}}, 131, 4);
  for (const Layout& layout : std::vector<Layout>{{1, 1}, {2, 1}, {2, 2}}) {
    SCOPED_TRACE(layout_name(layout));
    const auto real = dealt(sequences);
    const auto with_dummies = [&](int rank, int num_ranks) {
      Passes passes = real(rank, num_ranks);
      passes.insert(passes.begin(), 2, {});  // before, so that they are the first contributions
      passes.push_back({});
      return passes;
    };
    const auto config = testing::odd_config();
    const NamedValues expected = gradients_of({.config = config, .passes = real}, layout);
    const GradientCase gradient_case{.config = config, .passes = with_dummies};
    EXPECT_EQ(gradients_of(gradient_case, layout), expected);
    expect_unmoved_by_delays(gradient_case, layout, expected);
    const NamedValues nothing =
        gradients_of({.config = config, .passes = [](int, int) { return Passes(2); }}, layout);
    for (const auto& [name, values] : nothing) {
      EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f)) << name;
    }
  }
}

TEST(GtpGradients, GradientsOfMicroBatchesAddUpToThoseOfOne) {
  const auto sequences = make_rollout({{3, 9}, {5, 4}, {2, 7}, {4, 4}}, 131, 4);
  const auto together = [&](int rank, int) {
    Passes passes(1);
    for (size_t i = 0; i < sequences.size() && rank == 0; ++i) passes[0].push_back(&sequences[i]);
    return passes;
  };
  for (const Layout& layout : std::vector<Layout>{{1, 1}, {2, 1}, {4, 1}}) {
    SCOPED_TRACE(layout_name(layout));
    const auto config = testing::odd_config();
    expect_close(gradients_of({.config = config, .passes = dealt(sequences)}, layout),
                 gradients_of({.config = config, .passes = together}, layout), 2e-6);
  }
}

// G06: only the embedding and the head, of one shape; and layers whose neighbouring matrices have
// one shape.
TEST(GtpGradients, G06_NeighboursOfOneShape) {
  const auto sequences = make_rollout({{3, 9}, {5, 4}, {2, 7}, {4, 4}}, 131, 4);
  model::ModelConfig no_layers = testing::odd_config(false);
  no_layers.num_layers = 0;
  model::ModelConfig square =
      testing::odd_config(true);  // down is [48, 48] as o is, gate+up [96, 48]
  square.intermediate_size = 48;
  square.vocab_size = 96;
  auto small_tokens = make_rollout({{3, 9}, {5, 4}, {2, 7}, {4, 4}}, 96, 4);
  for (const auto& [config, rollout] :
       {std::pair{no_layers, &sequences}, std::pair{square, &std::as_const(small_tokens)}}) {
    const GradientCase gradient_case{.config = config, .passes = dealt(*rollout)};
    auto reference = gradients_of_one_rank(gradient_case);
    for (const Layout& layout : std::vector<Layout>{{2, 1}, {4, 1}, {2, 2}}) {
      SCOPED_TRACE(layout_name(layout));
      const NamedValues gradients = gradients_of(gradient_case, layout);
      expect_close(gradients, reference.beside(layout.num_ranks()), 2e-6);
      expect_unmoved_by_delays(gradient_case, layout, gradients);
    }
  }
}

TEST(GtpGradients, G08_ATiedMatrixIsGatheredForEveryUse) {
  const auto sequences = make_rollout({{3, 9}}, 256, 4);
  for (const Delay delay : testing::delays_for(2)) {
    run_ranks(2, [&](World& world) {
      SCOPED_TRACE(testing::delay_name(delay));
      RankContext rank(world);
      rank.allocator.set_poison_scratch(true);
      TestModel model(rank, testing::even_config(true), delayed_groups(world, {2, 1}, delay, rank));
      testing::fill_lively(model.store, 7);
      const model::PackedBatch batch = rl::pack_rollout({&sequences[0]}, true, rank.allocator);
      const auto logprobs =
          testing::score(model.transformer, batch, 1.0f, nullptr, rank.ctx).processed;
      ASSERT_EQ(logprobs.size(), 9u);
      // Two layers of qkv, o, gate+up and down; the embedding for the lookup and again for the
      // head.
      EXPECT_EQ(model.store.counters().gathers, 2 * 4 + 2);
      EXPECT_EQ(model.store.counters().reduce_scatters, 0);
      const int64_t layer_elements = (128 + 64 + 256) * 64 + 64 * 128;
      EXPECT_EQ(model.store.counters().gathered_bytes, (2 * layer_elements + 2 * 256 * 64) * 4);

      TestModel whole(rank, testing::even_config(true), testing::solo_groups());
      testing::fill_lively(whole.store, 7);
      EXPECT_EQ(logprobs,
                testing::score(whole.transformer, batch, 1.0f, nullptr, rank.ctx).processed);
      EXPECT_EQ(whole.store.counters().gathers, 0);
    });
  }
}

// A loss that gives up in the middle of a pass, on every rank at the same place.
class FailingLoss : public model::TokenLoss {
 public:
  bool is_token_local() const override { return true; }
  void evaluate(int64_t, int64_t, const model::LogprobValues&,
                const model::LogprobGradientValues&) override {
    throw NonFiniteError("this loss always fails");
  }
};

TEST(GtpGradients, APassThatThrowsLeavesNothingBehind) {
  const auto sequences = make_rollout({{3, 9}, {5, 4}}, 131, 4);
  const auto config = testing::odd_config();
  const NamedValues clean = gradients_of({.config = config, .passes = dealt(sequences)}, {2, 1});
  LogicalValues values(model::make_transformer_parameters(config, 0.1f).specs);
  run_ranks(2, [&](World& world) {
    RankContext rank(world);
    rank.allocator.set_poison_scratch(true);
    TestModel model(rank, config, make_training_groups(world, Mesh(1, 2, 1), 16));
    testing::fill_lively(model.store, 7);
    const model::PackedBatch batch =
        rl::pack_rollout({&sequences[static_cast<size_t>(world.rank())]}, true, rank.allocator);
    FailingLoss failing;
    EXPECT_THROW(model.transformer.train(batch, 1.0f, failing, nullptr, rank.ctx), NonFiniteError);
    model.store.zero_gradients();
    rl::NllLoss loss(16);
    model.transformer.train(batch, 1.0f, loss, nullptr, rank.ctx);
    model.store.reduce_gradients();
    values.add_owned_gradients(model.store);
  });
  EXPECT_EQ(values.take(), clean);
}

}  // namespace
}  // namespace grpo::parallel
