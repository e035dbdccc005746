// T rows, V vocabulary.
#include "model/ops/sampler.h"

#include <limits>
#include <set>

#include "tests/ops/kept_sets.h"
#include "tests/ops/token_draws.h"

namespace grpo::ops {
namespace {

class SamplerTest : public KeptSetTest {
 protected:
  std::vector<SampledToken> sample(const Tensor& logits, const std::vector<double>& uniforms,
                                   const SamplingFilter& filter) {
    return draw(logits, one_draw_a_row(uniforms), filter);
  }
  std::vector<SampledToken> draw(const Tensor& logits, const std::vector<TokenDraw>& draws,
                                 const SamplingFilter& filter) {
    std::vector<SampledToken> out(draws.size());
    kept.clear();
    sample_tokens(out.data(), &kept, logits, draws, filter, ctx());
    return out;
  }

  KeptTokens kept;  // of the last call
};

const SamplingFilter kFilters[] = {{1.0f, 0, 1.0},    {0.7f, 0, 1.0},   {0.7f, 20, 1.0},
                                   {1.3f, 0, 0.8},    {0.7f, 50, 0.9},  {0.7f, 20, 1.0, 0},
                                   {1.3f, 0, 0.8, 0}, {1.3f, 0, 0.8, 4}};

// What generation stores is what training computes, to the last bit (numerics contract 4).
TEST_F(SamplerTest, StoredLogprobsAreTrainingsBits) {
  for (const int64_t size : {1, 40, 1024, 3001}) {
    for (const SamplingFilter& filter : kFilters) {
      const int64_t rows = 16;
      const Tensor logits = random(DType::kFloat32, {rows, size}, 3.0);
      std::vector<double> uniforms;
      for (int64_t t = 0; t < rows; ++t)
        uniforms.push_back(uniform_at(1, 2, 3, static_cast<uint64_t>(t)));
      const std::vector<SampledToken> sampled = sample(logits, uniforms, filter);
      std::vector<int32_t> tokens;
      Values logprobs;
      for (const SampledToken& token : sampled) {
        tokens.push_back(token.token);
        logprobs.push_back(token.logprob);
      }
      EXPECT_EQ(kept, filtered(logits, filter));
      const TokenLogprobs trained{make(DType::kFloat32, {rows}), make(DType::kFloat32, {rows})};
      token_logprobs(trained, logits, ints({rows}, tokens), kept.view(), filter.inv_temperature(),
                     ctx());
      expect_same_bits(trained.processed, from(DType::kFloat32, {rows}, logprobs), "logprob");
    }
  }
}

TEST_F(SamplerTest, RowsDoNotDependOnTheirCompany) {
  const Tensor logits = random(DType::kFloat32, {9, 2050}, 3.0);
  std::vector<double> uniforms;
  for (uint64_t t = 0; t < 9; ++t) uniforms.push_back(uniform_at(4, 5, 6, t));
  const std::vector<SampledToken> all = sample(logits, uniforms, {0.9f, 40, 0.95});
  const KeptTokens all_kept = kept;
  for (size_t t = 0; t < 9; ++t) {
    const SampledToken alone =
        sample(logits.rows(static_cast<int64_t>(t), 1), {uniforms[t]}, {0.9f, 40, 0.95})[0];
    EXPECT_EQ(alone.token, all[t].token);
    EXPECT_EQ(alone.logprob, all[t].logprob);
    EXPECT_TRUE(same_set(kept.view(), 0, all_kept.view(), static_cast<int64_t>(t)));
  }
}

// Draws of one row are those that the row alone gives, whatever other draws come with them.
TEST_F(SamplerTest, ARowGivesSeveralDraws) {
  const Tensor logits = random(DType::kFloat32, {3, 1500}, 3.0);
  for (const SamplingFilter& filter : kFilters) {
    std::vector<TokenDraw> draws;
    for (const int32_t row : {0, 0, 0, 1, 2, 2}) {
      draws.push_back({.uniform = uniform_at(3, 1, 4, draws.size()), .row = row});
    }
    const std::vector<SampledToken> together = draw(logits, draws, filter);
    const KeptTokens together_kept = kept;
    EXPECT_EQ(together_kept.num_rows(), 3);
    std::set<int32_t> tokens;
    for (size_t i = 0; i < draws.size(); ++i) {
      const SampledToken alone =
          sample(logits.rows(draws[i].row, 1), {draws[i].uniform}, filter)[0];
      EXPECT_EQ(alone.token, together[i].token);
      EXPECT_EQ(alone.logprob, together[i].logprob);
      EXPECT_TRUE(same_set(kept.view(), 0, together_kept.view(), draws[i].row));
      tokens.insert(together[i].token);
    }
    EXPECT_GT(tokens.size(), 2u);
  }
}

// The inverse of the cumulative distribution at both sides of each step.
TEST_F(SamplerTest, TokenIsTheFirstWhoseCumulativeProbabilityExceedsTheUniform) {
  const Tensor logits =
      from(DType::kFloat32, {1, 5},
           {std::log(1.0), std::log(2.0), -std::numeric_limits<double>::infinity(), std::log(4.0),
            std::log(1.0)});
  const double steps[] = {1.0 / 8, 3.0 / 8, 3.0 / 8, 7.0 / 8, 1.0};
  const std::pair<double, int32_t> expected[] = {{0.0, 0},
                                                 {steps[0] - 1e-6, 0},
                                                 {steps[0] + 1e-6, 1},
                                                 {steps[1] - 1e-6, 1},
                                                 {steps[1] + 1e-6, 3},
                                                 {steps[3] - 1e-6, 3},
                                                 {steps[3] + 1e-6, 4},
                                                 {1.0 - 0x1.0p-53, 4}};
  for (const auto& [uniform, token] : expected) {
    EXPECT_EQ(sample(logits, {uniform}, {})[0].token, token) << uniform;
  }
}

TEST_F(SamplerTest, FilteredTokensAreNeverDrawn) {
  const Tensor logits = random(DType::kFloat32, {1, 1500}, 2.0);
  for (const SamplingFilter& filter : kFilters) {
    for (uint64_t draw = 0; draw < 200; ++draw) {
      const SampledToken token = sample(logits, {uniform_at(8, 8, 8, draw)}, filter)[0];
      const auto allowed = members(kept.view(), logits, filter.inv_temperature())[0];
      ASSERT_TRUE(std::binary_search(allowed.begin(), allowed.end(), token.token));
    }
  }
}

TEST_F(SamplerTest, FrequenciesFollowTheProbabilities) {
  const Tensor logits = from(DType::kFloat32, {1, 3}, {0.0, std::log(2.0), std::log(5.0)});
  constexpr int kDraws = 20000;
  int counts[3] = {};
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    ++counts[sample(logits, {uniform_at(1, 1, 1, draw)}, {})[0].token];
  }
  const double wanted[] = {1.0 / 8, 2.0 / 8, 5.0 / 8};
  for (int v = 0; v < 3; ++v) {
    // Five standard deviations of a binomial count.
    const double deviation = std::sqrt(kDraws * wanted[v] * (1 - wanted[v]));
    EXPECT_NEAR(counts[v], kDraws * wanted[v], 5 * deviation) << v;
  }
}

TEST_F(SamplerTest, GreedyTakesTheFirstLargest) {
  const Tensor logits = from(DType::kFloat32, {3, 4},
                             {0.0, 2.0, 2.0, 1.0, 5.0, 5.0, 5.0, 5.0, -3.0, -2.0, -1.0, -0.5});
  std::vector<SampledToken> out(3);
  argmax_tokens(out.data(), logits, ctx());
  EXPECT_EQ(out[0].token, 1);
  EXPECT_EQ(out[1].token, 0);
  EXPECT_EQ(out[2].token, 3);
  EXPECT_NEAR(out[1].logprob, std::log(0.25), kLogprob);
  const TokenLogprobs trained{make(DType::kFloat32, {3}), make(DType::kFloat32, {3})};
  token_logprobs(trained, logits, ints({3}, {1, 0, 3}), {}, 1.0f, ctx());
  for (size_t t = 0; t < 3; ++t) {
    EXPECT_EQ(out[t].logprob, trained.unfiltered.data<float>()[t]);
  }
}

TEST_F(SamplerTest, NonFiniteRowsAreNamed) {
  const Tensor logits = random(DType::kFloat32, {3, 1500});
  logits.data<float>()[2 * 1500 + 1400] = std::numeric_limits<float>::quiet_NaN();
  std::vector<SampledToken> out(3);
  const std::vector<double> uniforms(3, 0.5);
  for (const bool greedy : {false, true}) {
    try {
      if (greedy) {
        argmax_tokens(out.data(), logits, ctx());
      } else {
        sample_tokens(out.data(), nullptr, logits, one_draw_a_row(uniforms), {0.7f, 10, 0.9},
                      ctx());
      }
      ADD_FAILURE() << "a NaN was sampled from";
    } catch (const NonFiniteError& error) {
      EXPECT_NE(std::string(error.what()).find("row 2"), std::string::npos) << error.what();
    }
  }
}

TEST_F(SamplerTest, ZeroRowsAndChecks) {
  const Tensor none = make(DType::kFloat32, {0, 7});
  sample_tokens(nullptr, nullptr, none, {}, {}, ctx());
  argmax_tokens(nullptr, none, ctx());
  const Tensor logits = random(DType::kFloat32, {1, 7});
  const auto expect_refused = [&](const Tensor& x, const std::vector<TokenDraw>& draws,
                                  const SamplingFilter& filter) {
    EXPECT_THROW(draw(x, draws, filter), InternalError);
  };
  const std::vector<TokenDraw> middle{{.uniform = 0.5, .row = 0}};
  EXPECT_NO_THROW(draw(logits, middle, {}));
  expect_refused(logits, {{.uniform = 1.0, .row = 0}}, {});
  expect_refused(logits, {{.uniform = -0.1, .row = 0}}, {});
  expect_refused(logits, middle, {0.0f, 0, 1.0});
  expect_refused(logits, middle, {1.0f, 0, 1.5});
  expect_refused(random(DType::kBfloat16, {1, 7}), middle, {});
  // Rows outside, out of order, left out.
  expect_refused(logits, {{.uniform = 0.5, .row = 1}}, {});
  expect_refused(logits, {{.uniform = 0.5, .row = -1}}, {});
  expect_refused(logits, {}, {});
  const Tensor two = random(DType::kFloat32, {2, 7});
  EXPECT_NO_THROW(draw(two, {{0.5, 0}, {0.5, 0}, {0.5, 1}}, {}));
  expect_refused(two, middle, {});
  expect_refused(two, {{0.5, 0}, {0.5, 1}, {0.5, 0}}, {});
  expect_refused(two, {{0.5, 0}, {0.5, 1}, {0.5, 2}}, {});
  expect_refused(two, {{0.5, 1}}, {});
}

}  // namespace
}  // namespace grpo::ops
