#include "rl/objective/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "model/core/counter_rng.h"
#include "tests/rl/null_visitor.h"

namespace grpo::rl {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Sample {
  std::vector<double> current, previous, generation, reference, advantages;
  std::vector<uint8_t> mask;
  double sequence_mask = 1;
  double reward = 1;

  LossSequence view() const {
    return {.current = current,
            .current_unfiltered = {},
            .previous = previous,
            .generation = generation,
            .reference = reference,
            .token_mask = mask,
            .advantages = advantages,
            .sequence_mask = sequence_mask,
            .reward = reward};
  }
};

// Log-probabilities in (-2, 0), the policies within `spread` of each other.
Sample make_sample(uint64_t seed, size_t length, double spread) {
  Sample sample;
  const auto draw = [&](uint64_t stream, size_t t) { return uniform_at(seed, stream, t, 0); };
  const double advantage = seed % 2 == 0 ? 0.7 : -1.3;
  for (size_t t = 0; t < length; ++t) {
    const double base = -1.2 - 0.8 * draw(0, t);
    sample.current.push_back(base + spread * (draw(1, t) - 0.5));
    sample.previous.push_back(base + spread * (draw(2, t) - 0.5));
    sample.generation.push_back(base + spread * (draw(3, t) - 0.5));
    sample.reference.push_back(base + spread * (draw(4, t) - 0.5));
    sample.advantages.push_back(advantage);
    sample.mask.push_back(draw(5, t) < 0.8 ? 1 : 0);
  }
  return sample;
}

LossCounts count(const std::vector<Sample>& samples) {
  LossCounts counts{};
  for (const Sample& sample : samples) {
    counts.valid_sequences += sample.sequence_mask;
    for (const uint8_t m : sample.mask) {
      counts.valid_tokens += m * sample.sequence_mask;
      if (sample.reward > 0) counts.positive_tokens += m * sample.sequence_mask;
    }
  }
  return counts;
}

LossSums batch_loss(const LossConfig& config, const std::vector<Sample>& samples) {
  const LossCounts counts = count(samples);
  LossSums total;
  for (const Sample& sample : samples) total.add(evaluate_loss(config, sample.view(), counts, {}));
  return average_loss(config, total, counts);
}

std::vector<double> gradient_of(const LossConfig& config, const std::vector<Sample>& samples,
                                size_t index) {
  std::vector<double> gradient(samples[index].current.size(), kNan);
  evaluate_loss(config, samples[index].view(), count(samples), {gradient, {}});
  std::vector<double> alone(gradient.size(), kNan);
  evaluate_loss_gradients(config, samples[index].view(), count(samples), {alone, {}});
  EXPECT_EQ(alone, gradient);
  return gradient;
}

struct NamedConfig {
  const char* name;
  std::function<void(LossConfig&)> change;
};

class LossGradient : public testing::TestWithParam<NamedConfig> {};

// With the on-policy approximation the logged KL value has the gradient of the convention, so that
// the whole loss can be differentiated numerically.
TEST_P(LossGradient, EqualsFiniteDifferences) {
  LossConfig config;
  config.reference_policy_kl_penalty = 0.3;
  config.use_on_policy_kl_approximation = true;
  GetParam().change(config);
  std::vector<Sample> samples{make_sample(1, 7, 0.9), make_sample(2, 5, 0.9),
                              make_sample(3, 6, 0.9)};
  constexpr double kStep = 1e-6;
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::vector<double> gradient = gradient_of(config, samples, i);
    for (size_t t = 0; t < gradient.size(); ++t) {
      double& value = samples[i].current[t];
      const double kept = value;
      value = kept + kStep;
      const double above = batch_loss(config, samples).loss;
      value = kept - kStep;
      const double below = batch_loss(config, samples).loss;
      value = kept;
      EXPECT_NEAR(gradient[t], (above - below) / (2 * kStep), 2e-9)
          << "sequence " << i << " token " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configs, LossGradient,
    testing::Values(
        NamedConfig{"token_level", [](LossConfig&) {}},
        NamedConfig{"sequence_level_loss", [](LossConfig& c) { c.token_level_loss = false; }},
        NamedConfig{"gspo",
                    [](LossConfig& c) {
                      c.token_level_loss = false;
                      c.sequence_level_importance_ratios = true;
                    }},
        NamedConfig{"reinforce", [](LossConfig& c) { c.disable_ppo_ratio = true; }},
        NamedConfig{"dual_clip", [](LossConfig& c) { c.ratio_clip_c = 1.1; }},
        NamedConfig{"positive_nll", [](LossConfig& c) { c.positive_example_nll_weight = 0.5; }},
        NamedConfig{"icepop",
                    [](LossConfig& c) {
                      c.use_importance_sampling_correction = true;
                      c.truncated_importance_sampling_type = "icepop";
                      c.truncated_importance_sampling_ratio = 1.1;
                      c.truncated_importance_sampling_ratio_min = 0.9;
                    }},
        NamedConfig{"kl_k1", [](LossConfig& c) { c.reference_policy_kl_type = "k1"; }},
        NamedConfig{"kl_output_clamp", [](LossConfig& c) { c.kl_output_clamp_value = 0.01; }}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(Loss, MaskedTokensMayHoldNan) {
  const LossConfig config;
  Sample sample = make_sample(4, 9, 0.3);
  sample.mask = {0, 1, 1, 0, 1, 1, 1, 0, 1};
  const std::vector<double> expected = gradient_of(config, {sample}, 0);
  const double expected_loss = batch_loss(config, {sample}).loss;
  for (const size_t t : {0u, 3u, 7u})
    sample.current[t] = sample.previous[t] = sample.generation[t] = sample.reference[t] =
        sample.advantages[t] = kNan;
  const std::vector<double> gradient = gradient_of(config, {sample}, 0);
  EXPECT_EQ(gradient, expected);
  EXPECT_EQ(gradient[3], 0.0);
  EXPECT_EQ(batch_loss(config, {sample}).loss, expected_loss);
}

TEST(Loss, NothingValidIsZero) {
  for (const bool token_level : {true, false}) {
    LossConfig config;
    config.token_level_loss = token_level;
    config.positive_example_nll_weight = 0.5;
    Sample empty = make_sample(5, 4, 0.3);
    empty.mask.assign(4, 0);
    Sample masked = make_sample(6, 4, 0.3);
    masked.sequence_mask = 0;
    const LossSums average = batch_loss(config, {empty, masked});
    EXPECT_EQ(average.loss, 0.0);
    EXPECT_EQ(average.token_mult_prob_error, 0.0);
    EXPECT_EQ(average.num_valid_samples, 1.0);
    EXPECT_EQ(average.probs_ratio_min, std::numeric_limits<double>::infinity());
    EXPECT_EQ(gradient_of(config, {empty, masked}, 0), std::vector<double>(4, 0.0));
    EXPECT_EQ(gradient_of(config, {empty, masked}, 1), std::vector<double>(4, 0.0));
  }
}

TEST(Loss, EqualPoliciesGiveExactlyOne) {
  std::vector<Sample> samples;
  for (const size_t length : {3u, 7u, 11u, 28u}) {
    samples.push_back(make_sample(length, length, 0.0));
    samples.back().mask.assign(length, 1);
  }
  const LossSums average = batch_loss(LossConfig(), samples);
  EXPECT_EQ(average.token_mult_prob_error, 1.0);
  EXPECT_EQ(average.probs_ratio, 1.0);
  EXPECT_EQ(average.sampling_importance_ratio, 1.0);
  EXPECT_EQ(average.js_divergence_error, 0.0);
  EXPECT_EQ(average.gen_kl_error, 0.0);
  EXPECT_EQ(average.clip_ratio_low, 0.0);
}

TEST(Loss, PartsOfASequenceGiveItsGradient) {
  const LossConfig config;
  ASSERT_TRUE(config.is_token_local());
  const Sample sample = make_sample(7, 10, 0.5);
  const LossCounts counts = count({sample});
  const std::vector<double> whole = gradient_of(config, {sample}, 0);
  std::vector<double> parts;
  for (const auto& [begin, length] : {std::pair<size_t, size_t>{0, 3}, {3, 4}, {7, 3}}) {
    const LossSequence all = sample.view();
    LossSequence part = all;
    part.current = all.current.subspan(begin, length);
    part.previous = all.previous.subspan(begin, length);
    part.generation = all.generation.subspan(begin, length);
    part.reference = all.reference.subspan(begin, length);
    part.token_mask = all.token_mask.subspan(begin, length);
    part.advantages = all.advantages.subspan(begin, length);
    std::vector<double> gradient(length);
    evaluate_loss(config, part, counts, {gradient, {}});
    parts.insert(parts.end(), gradient.begin(), gradient.end());
  }
  EXPECT_EQ(parts, whole);
}

TEST(Loss, KlGradientGoesToTheUnfilteredLogprobs) {
  LossConfig config;
  config.reference_policy_kl_penalty = 0.4;
  const Sample sample = make_sample(8, 6, 0.5);
  LossSequence sequence = sample.view();
  sequence.current_unfiltered = sequence.current;
  const LossCounts counts = count({sample});
  std::vector<double> filtered(6), unfiltered(6);
  evaluate_loss(config, sequence, counts, {filtered, unfiltered});
  const std::vector<double> together = gradient_of(config, {sample}, 0);
  for (size_t t = 0; t < 6; ++t) EXPECT_NEAR(filtered[t] + unfiltered[t], together[t], 1e-15);
  config.reference_policy_kl_penalty = 0;
  EXPECT_EQ(gradient_of(config, {sample}, 0), filtered);
}

TEST(Loss, ClipSharesCountTokensOutsideTheBounds) {
  Sample sample = make_sample(9, 4, 0.0);
  sample.mask.assign(4, 1);
  sample.current = {-1.0, -1.0, -1.0, -1.0};
  sample.previous = {-1.0, -1.5, -1.6, -0.5};
  const LossSums average = batch_loss(LossConfig(), {sample});
  EXPECT_EQ(average.clip_ratio_high, 0.5);
  EXPECT_EQ(average.clip_ratio_low, 0.25);
}

TEST(Loss, OnPolicyRatioNeedsNoPreviousLogprobs) {
  LossConfig config;
  config.force_on_policy_ratio = true;
  Sample sample = make_sample(10, 5, 0.5);
  const std::vector<double> gradient = gradient_of(config, {sample}, 0);
  sample.previous.clear();
  EXPECT_EQ(gradient_of(config, {sample}, 0), gradient);
  EXPECT_EQ(batch_loss(config, {sample}).probs_ratio, 1.0);
}

TEST(Loss, RejectsSpansOfAnotherLength) {
  Sample sample = make_sample(11, 5, 0.5);
  sample.reference.pop_back();
  EXPECT_THROW(batch_loss(LossConfig(), {sample}), InternalError);
}

TEST(LossConfig, TokenLocalOnlyWithoutSequenceQuantities) {
  LossConfig config;
  EXPECT_TRUE(config.is_token_local());
  config.truncated_importance_sampling_type = "seq-mask-tis";
  EXPECT_FALSE(config.is_token_local());
  config.truncated_importance_sampling_type = "tis";
  EXPECT_TRUE(config.is_token_local());
  config.token_level_loss = false;
  EXPECT_FALSE(config.is_token_local());
}

TEST(LossConfig, ValidationNamesTheKey) {
  const auto error_after = [](const std::function<void(LossConfig&)>& change) {
    LossConfig config;
    change(config);
    return validation_error(config);
  };
  EXPECT_EQ(error_after([](LossConfig&) {}), "");
  EXPECT_EQ(error_after([](LossConfig& c) { c.ratio_clip_min = -0.1; }),
            "test.yaml:1:1: ratio_clip_min: -0.1 is not a number of at least 0");
  EXPECT_EQ(error_after([](LossConfig& c) { c.ratio_clip_c = 1.0; }),
            "test.yaml:1:1: ratio_clip_c: 1 is neither above 1 nor null");
  EXPECT_EQ(error_after([](LossConfig& c) { c.truncated_importance_sampling_ratio = 2.0; }),
            "test.yaml:1:1: truncated_importance_sampling_ratio: has no effect without "
            "truncated_importance_sampling_type: tis, icepop or seq-mask-tis");
  EXPECT_EQ(error_after([](LossConfig& c) {
              c.use_importance_sampling_correction = true;
              c.truncated_importance_sampling_type = "ticepop";
            }),
            "test.yaml:1:1: truncated_importance_sampling_type: \"ticepop\" is not one of tis, "
            "icepop, seq-mask-tis, null");
  EXPECT_EQ(error_after([](LossConfig& c) { c.sequence_level_importance_ratios = true; }),
            "test.yaml:1:1: sequence_level_importance_ratios: true needs token_level_loss: false");
}

TEST(LossConfig, VisitShowsEveryField) {
  LossConfig config;
  NullVisitor visitor;
  config.visit(visitor);
  EXPECT_EQ(visitor.keys.size(), 19u);
}

}  // namespace
}  // namespace grpo::rl
