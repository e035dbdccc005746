// One update under every layout: log-probabilities and loss bit for bit, weights up to the order of
// sums.
#include "rl/loop/policy_update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "parallel/checkpoint/weights_io.h"
#include "rl/loop/sequence_scorer.h"
#include "tests/policy_fixture.h"

namespace grpo::rl {
namespace {

using testing::expect_weight_parity;
using testing::Layout;
using testing::layout_name;
using testing::make_rollout;
using testing::make_signals;
using testing::NamedValues;
using testing::PolicyCase;
using testing::PolicyOutcome;
using testing::train_policy;

const std::vector<Layout> kLayouts = {{2, 1}, {3, 1}, {4, 1}, {1, 2}, {2, 2}};

// Uneven on purpose: one token that predicts nothing, two tokens, a long and short ones.
const std::vector<testing::SequenceLengths> kLengths = {{1, 0}, {1, 1},  {5, 7}, {3, 20},
                                                        {9, 1}, {2, 30}, {4, 12}};

struct ModelCase {
  std::string name;
  model::ModelConfig config;
  std::string golden_folder;  // empty: lively random weights
};

std::vector<ModelCase> model_cases() {
  std::vector<ModelCase> cases = {{"EVEN_tied", testing::even_config(true), ""},
                                  {"EVEN_untied", testing::even_config(false), ""},
                                  {"ODD_tied", testing::odd_config(true), ""},
                                  {"ODD_untied", testing::odd_config(false), ""}};
  for (const char* name : {"qwen2_tiny_tied", "qwen2_odd_vocab_tied", "qwen2_tiny_untied"}) {
    const std::string folder = std::string(GRPO_TEST_DATA_DIR "/golden/") + name;
    cases.push_back({name, model::read_model_config(folder), folder});
  }
  return cases;
}

PolicyCase make_case(const ModelCase& model_case, double advantage_scale) {
  PolicyCase result{.config = model_case.config,
                    .sequences = make_rollout(kLengths, model_case.config.vocab_size, 11),
                    .signals = {}};
  result.signals = make_signals(result.sequences, advantage_scale);
  if (!model_case.golden_folder.empty()) {
    result.fill = [folder = model_case.golden_folder](parallel::ShardedParameterStore& store) {
      parallel::load_weights(store, model::WeightsDirectory(folder));
    };
  }
  return result;
}

std::vector<SequenceSignals> signals_of(const std::vector<double>& advantages) {
  std::vector<SequenceSignals> signals(advantages.size());
  for (size_t s = 0; s < advantages.size(); ++s) signals[s].advantage = advantages[s];
  return signals;
}

// Everything the loss can read: KL, stored pre-update log-probabilities, so that the clip acts on
// some tokens.
void add_stored_logprobs(PolicyCase& policy_case) {
  policy_case.loss = LossConfig();
  policy_case.loss.reference_policy_kl_penalty = 0.05;
  for (size_t s = 0; s < policy_case.sequences.size(); ++s) {
    const std::vector<float>& generation = policy_case.sequences[s].generation_logprobs;
    policy_case.signals[s].previous_logprobs = generation;
    policy_case.signals[s].reference_logprobs = generation;
    for (float& value : policy_case.signals[s].reference_logprobs) value += 0.1f;
  }
}

void expect_same_results(const PolicyOutcome& outcome, const PolicyOutcome& reference) {
  for (size_t u = 0; u < reference.updates.size(); ++u) {
    const UpdateResult& expected = reference.updates[u];
    const UpdateResult& actual = outcome.updates[u];
    EXPECT_EQ(actual.logprobs, expected.logprobs) << "update " << u;
    EXPECT_EQ(actual.averages.loss, expected.averages.loss);
    EXPECT_EQ(actual.averages.kl_penalty, expected.averages.kl_penalty);
    EXPECT_EQ(actual.averages.probs_ratio, expected.averages.probs_ratio);
    EXPECT_EQ(actual.averages.probs_ratio_max, expected.averages.probs_ratio_max);
    EXPECT_EQ(actual.averages.clip_ratio_low, expected.averages.clip_ratio_low);
    EXPECT_EQ(actual.averages.clip_ratio_high, expected.averages.clip_ratio_high);
    EXPECT_EQ(actual.averages.token_mult_prob_error, expected.averages.token_mult_prob_error);
    EXPECT_EQ(actual.counts.valid_tokens, expected.counts.valid_tokens);
    EXPECT_EQ(actual.counts.valid_sequences, expected.counts.valid_sequences);
  }
}

void expect_same_results_and_parity(const PolicyOutcome& outcome, const PolicyOutcome& reference) {
  expect_same_results(outcome, reference);
  expect_weight_parity(outcome, reference);
}

using Comparison = std::function<void(const PolicyOutcome& outcome, const PolicyOutcome& one_rank)>;

// Compares every layout with what one rank made of a case; on GPUs also with delays.
void compare_layouts(PolicyCase policy_case, const std::vector<Layout>& layouts,
                     testing::OneRank<PolicyOutcome> reference, const Comparison& compare) {
  for (const Layout& layout : layouts) {
    for (const testing::Delay delay : testing::delays_for(layout.num_ranks())) {
      SCOPED_TRACE(layout_name(layout) + " " + testing::delay_name(delay));
      policy_case.delay = delay;
      compare(train_policy(policy_case, layout), reference.beside(layout.num_ranks()));
    }
  }
}

// ... with one rank's run of the same case, whose micro-batches are those of every gtp_remat up to
// their multiple: without replicas, no bit may differ.
void compare_layouts(const PolicyCase& policy_case, const std::vector<Layout>& layouts,
                     const Comparison& compare) {
  const auto one_rank = testing::train_on_one_rank(policy_case);
  for (const Layout& layout : layouts) {
    compare_layouts(policy_case, {layout}, one_rank,
                    [&](const PolicyOutcome& outcome, const PolicyOutcome& reference) {
                      compare(outcome, reference);
                      if (layout.dp > 1) return;
                      ASSERT_LE(layout.gtp_remat, policy_case.options.micro_batches.multiple);
                      EXPECT_EQ(outcome.weights, reference.weights);
                      for (size_t u = 0; u < reference.updates.size(); ++u) {
                        EXPECT_GT(reference.updates[u].grad_norm, 0);
                        EXPECT_EQ(outcome.updates[u].grad_norm, reference.updates[u].grad_norm);
                      }
                    });
  }
}

class PolicyUpdateLayouts : public ::testing::TestWithParam<ModelCase> {};
INSTANTIATE_TEST_SUITE_P(Models, PolicyUpdateLayouts, ::testing::ValuesIn(model_cases()),
                         [](const auto& test) { return test.param.name; });

// SGD, one step at learning rate 1.
TEST_P(PolicyUpdateLayouts, EqualBitsOfLogprobsAndLossAndOneStepsGradientParity) {
  PolicyCase policy_case = make_case(GetParam(), 8.0);
  add_stored_logprobs(policy_case);
  compare_layouts(policy_case, kLayouts,
                  [](const PolicyOutcome& outcome, const PolicyOutcome& reference) {
                    const LossSums& averages = reference.updates[0].averages;
                    EXPECT_GT(averages.clip_ratio_low + averages.clip_ratio_high, 0);
                    expect_same_results_and_parity(outcome, reference);
                  });
}

TEST_P(PolicyUpdateLayouts, EqualBitsOfLogprobsAndLossInBfloat16) {
  PolicyCase policy_case = make_case(GetParam(), 1.0);
  policy_case.dtype = DType::kBfloat16;
  compare_layouts(policy_case, {{2, 1}, {3, 1}, {2, 2}},
                  [](const PolicyOutcome& outcome, const PolicyOutcome& reference) {
                    EXPECT_EQ(outcome.initial_weights, reference.initial_weights);
                    expect_same_results(outcome, reference);
                  });
}

TEST(PolicyUpdate, GradientParityOfFiveStepsAtATenth) {
  for (const size_t model : {size_t{2}, size_t{6}}) {
    SCOPED_TRACE(model_cases()[model].name);
    PolicyCase policy_case = make_case(model_cases()[model], 4.0);
    policy_case.options.learning_rate = 0.1;
    policy_case.num_updates = 5;
    compare_layouts(policy_case, {{2, 1}, {3, 1}, {2, 2}},
                    [](const PolicyOutcome& outcome, const PolicyOutcome& reference) {
                      expect_weight_parity(outcome, reference);
                    });
  }
}

// A loss that needs whole sequences reads the head twice.
TEST(PolicyUpdate, TwoPassLossHasTheSameParity) {
  PolicyCase policy_case = make_case(model_cases()[2], 4.0);
  policy_case.loss.sequence_level_importance_ratios = true;
  policy_case.loss.token_level_loss = false;
  ASSERT_FALSE(policy_case.loss.is_token_local());
  compare_layouts(policy_case, kLayouts, expect_same_results_and_parity);
}

// A wrong factor on one axis shows as a ratio of the updates of 2, 4 or 1/2; 1/3 is not exact in
// any dtype.
TEST(PolicyUpdate, D03_TheScaleOfGradientsIsThatOfOneRank) {
  for (const bool token_level : {true, false}) {
    PolicyCase policy_case = make_case(model_cases()[0], 8.0);
    policy_case.loss.token_level_loss = token_level;
    policy_case.sequences = make_rollout({{4, 8}, {4, 8}, {4, 8}, {4, 8}}, 256, 3);
    policy_case.signals = make_signals(policy_case.sequences, 8.0);
    policy_case.options.micro_batches.max_tokens = 12;  // four micro-batches of one sequence
    compare_layouts(policy_case, {{1, 4}, {2, 2}, {4, 1}, {3, 1}, {2, 1}, {1, 2}},
                    [](const PolicyOutcome& outcome, const PolicyOutcome& reference) {
                      expect_weight_parity(outcome, reference, 1e-6);
                    });
  }
}

// Tokens on the rank with few of them weigh no more: the divisor is the count over all data ranks.
TEST(PolicyUpdate, D07_TheDivisorCountsAllRanksOnce) {
  PolicyCase policy_case = make_case(model_cases()[0], 1.0);
  policy_case.sequences = make_rollout({{3, 5}, {3, 1}}, 256, 5);
  policy_case.signals = signals_of({-4.0, -10.0});
  policy_case.options.micro_batches.multiple = 1;
  const auto together = testing::train_on_one_rank(policy_case);
  for (const int64_t max_tokens : {8, 64}) {  // as 1 + 5 in two micro-batches, and together
    policy_case.options.micro_batches.max_tokens = max_tokens;
    compare_layouts(policy_case, {{1, 1}, {2, 1}, {1, 2}}, together,
                    [](const PolicyOutcome& outcome, const PolicyOutcome& reference) {
                      // The ratio is exactly 1, so a token's loss is minus its advantage.
                      EXPECT_EQ(reference.updates[0].averages.loss, (5 * 4.0 + 10.0) / 6);
                      EXPECT_EQ(reference.updates[0].counts.valid_tokens, 6);
                      expect_same_results_and_parity(outcome, reference);
                    });
  }
}

// The gradient that reaches each token's log-probability, whichever micro-batch it is in:
// -advantage / 6.
TEST(PolicyUpdate, D07_EveryTokensGradientIsItsShareOfTheWhole) {
  const std::vector<RolloutSequence> sequences = make_rollout({{3, 5}, {3, 1}}, 256, 5);
  const std::vector<SequenceSignals> signals = signals_of({3.0, 3.0});
  const LossConfig config = testing::actor_loss();
  const LossCounts counts{
      .valid_tokens = 6, .valid_sequences = 2, .positive_tokens = 0, .denominator_epsilon = 0};
  testing::RankContext rank;
  for (const size_t s : {size_t{0}, size_t{1}}) {
    const model::PackedBatch batch = pack_rollout({&sequences[s]}, true, rank.allocator);
    PolicyLoss loss(config, counts, batch, {&sequences[s]}, {&signals[s]});
    const auto rows = static_cast<size_t>(batch.num_predicted());
    const std::vector<float> logprobs(rows, -1.5f);
    std::vector<float> dprocessed(rows, 99.0f);
    std::vector<float> dunfiltered(rows, 99.0f);
    loss.evaluate(0, batch.num_predicted(), {.processed = logprobs, .unfiltered = logprobs},
                  {.dprocessed = dprocessed, .dunfiltered = dunfiltered});
    EXPECT_EQ(dprocessed, std::vector<float>(rows, -0.5f));
    EXPECT_EQ(dunfiltered, std::vector<float>(rows, 0.0f));
  }
}

// Sets of kept tokens, each on one rank at first: every layout trains on the same ones.
TEST(PolicyUpdate, N1_KeptTokensReachTheRanksThatTrain) {
  for (const int form : {0, 1, 2}) {  // by id, by a threshold, mixed
    PolicyCase policy_case = make_case(model_cases()[2], 4.0);
    const PolicyOutcome without = train_policy(policy_case, {1, 1});
    for (size_t s = 0; s < policy_case.sequences.size(); ++s) {
      RolloutSequence& sequence = policy_case.sequences[s];
      for (size_t i = 0; i < sequence.response_tokens.size(); ++i) {
        if (form == 1 || (form == 2 && (s + i) % 2 == 0)) {
          sequence.kept.append_threshold({-5.0, -1});
          continue;
        }
        std::vector<uint32_t> ids;
        for (uint32_t id = 0; id < 131; ++id) {
          const bool is_drawn = id == static_cast<uint32_t>(sequence.response_tokens[i]);
          if (is_drawn || (id + 3 * i + s) % 4 == 0) ids.push_back(id);
        }
        sequence.kept.append_ids(ids);
      }
    }
    policy_case.num_updates = 2;
    compare_layouts(policy_case, {{2, 1}, {3, 1}, {4, 1}, {1, 2}, {2, 2}},
                    [&](const PolicyOutcome& outcome, const PolicyOutcome& reference) {
                      EXPECT_NE(reference.updates[0].logprobs, without.updates[0].logprobs);
                      EXPECT_EQ(outcome.updates[0].logprobs, reference.updates[0].logprobs);
                      EXPECT_EQ(outcome.updates[0].averages.loss,
                                reference.updates[0].averages.loss);
                      expect_weight_parity(outcome, reference, 1e-4);
                    });
  }
}

TEST(PolicyUpdate, N01_UnevenMicroBatchesCompleteAndEqualOneRank) {
  PolicyCase policy_case = make_case(model_cases()[0], 4.0);
  // Five sequences of 72 tokens: three micro-batches on rank 0, two and a dummy on rank 1.
  policy_case.sequences = make_rollout({{8, 64}, {8, 64}, {8, 64}, {8, 64}, {8, 64}}, 256, 5);
  policy_case.signals = make_signals(policy_case.sequences, 4.0);
  policy_case.options.micro_batches.max_tokens = 100;
  compare_layouts(policy_case, {{2, 1}, {3, 1}, {2, 2}}, expect_same_results_and_parity);
}

// One sequence for four ranks: three of them only run passes of weight zero; and responses of no
// token at all.
TEST(PolicyUpdate, N01_RanksWithoutResponseTokensTakePart) {
  for (const auto& lengths : std::vector<std::vector<testing::SequenceLengths>>{
           {{8, 40}}, {{8, 40}, {50, 0}}, {{8, 40}, {50, 0}, {1, 0}}}) {
    PolicyCase policy_case = make_case(model_cases()[2], 4.0);
    policy_case.sequences = make_rollout(lengths, 131, 5);
    policy_case.signals = make_signals(policy_case.sequences, 4.0);
    compare_layouts(policy_case, {{2, 1}, {4, 1}, {2, 2}}, expect_same_results_and_parity);
  }
}

TEST(PolicyUpdate, N01_AnUpdateWithoutAnyTokenChangesNothing) {
  PolicyCase policy_case = make_case(model_cases()[2], 1.0);
  policy_case.sequences = make_rollout({{5, 0}, {2, 0}}, 131, 5);
  policy_case.signals = make_signals(policy_case.sequences, 1.0);
  for (const Layout& layout : std::vector<Layout>{{1, 1}, {2, 1}, {2, 2}}) {
    const PolicyOutcome outcome = train_policy(policy_case, layout);
    EXPECT_EQ(outcome.weights, outcome.initial_weights);
    EXPECT_EQ(outcome.updates[0].grad_norm, 0.0);
    EXPECT_EQ(outcome.updates[0].averages.loss, 0.0);
  }
}

// With a tied head every row of the vocabulary gets a gradient, so every row must move, on
// whichever rank it lies.
TEST(PolicyUpdate, G05_OneStepMovesEveryRowOfTheEmbedding) {
  const PolicyCase policy_case = make_case(model_cases()[2], 4.0);
  const PolicyOutcome outcome = train_policy(policy_case, {4, 1});
  const int64_t cols = policy_case.config.hidden_size;
  ASSERT_EQ(outcome.weights[0].first, "model.embed_tokens.weight");
  for (int64_t row = 0; row < policy_case.config.vocab_size; ++row) {
    const auto begin = outcome.weights[0].second.begin() + row * cols;
    EXPECT_FALSE(
        std::equal(begin, begin + cols, outcome.initial_weights[0].second.begin() + row * cols))
        << "row " << row;
  }
}

// What every rank logs is the mean over all ranks' tokens, not its own.
TEST(PolicyUpdate, S02_MetricsAreOfAllRanks) {
  PolicyCase policy_case = make_case(model_cases()[0], 1.0);
  policy_case.sequences = make_rollout({{4, 1}, {4, 1}}, 256, 5);
  policy_case.signals = signals_of({-1.0, -3.0});
  for (const Layout& layout : std::vector<Layout>{{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    for (const testing::Delay delay : testing::delays_for(layout.num_ranks())) {
      SCOPED_TRACE(layout_name(layout) + testing::delay_name(delay));
      policy_case.delay = delay;
      const PolicyOutcome outcome =
          train_policy(policy_case, layout);  // demands the same on all ranks
      EXPECT_EQ(outcome.updates[0].averages.loss, 2.0);
      EXPECT_EQ(outcome.updates[0].averages.probs_ratio, 1.0);
      EXPECT_EQ(outcome.updates[0].averages.num_valid_samples, 2.0);
    }
  }
  policy_case.delay = testing::Delay::kNone;
  // One of two tokens clipped, KL of one token only.
  add_stored_logprobs(policy_case);
  const std::vector<std::vector<float>> current =
      train_policy(policy_case, {1, 1}).updates[0].logprobs;
  for (const size_t s : {size_t{0}, size_t{1}}) {
    policy_case.signals[s].reference_logprobs = current[s];
    policy_case.signals[s].previous_logprobs = current[s];
  }
  policy_case.signals[1].previous_logprobs[0] -= 1.0f;
  policy_case.signals[1].reference_logprobs[0] -= 1.0f;
  const double kl = std::expm1(-1.0) + 1.0;
  for (const Layout& layout : std::vector<Layout>{{1, 1}, {2, 1}, {2, 2}}) {
    SCOPED_TRACE(layout_name(layout));
    const LossSums averages = train_policy(policy_case, layout).updates[0].averages;
    EXPECT_EQ(averages.clip_ratio_high, 0.5);
    EXPECT_NEAR(averages.kl_penalty, kl / 2, 1e-6);
  }
}

TEST(PolicyUpdate, ANonFiniteGradientStopsEveryRankAndNamesTheTensor) {
  PolicyCase policy_case = make_case(model_cases()[0], 1.0);
  policy_case.signals[5].advantage = std::numeric_limits<double>::infinity();
  EXPECT_THROW(train_policy(policy_case, {2, 1}), NonFiniteError);
  policy_case = make_case(model_cases()[0], 1e300);
  try {
    train_policy(policy_case, {2, 1});
    ADD_FAILURE() << "no error";
  } catch (const NonFiniteError& error) {
    EXPECT_NE(std::string(error.what()).find("the gradient of '"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace grpo::rl
