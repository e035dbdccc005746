// T tokens, V vocabulary.
#include "model/ops/log_softmax.h"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

using Json = nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class LogSoftmaxTest : public OpTest {
 protected:
  TokenLogprobs logprobs(const Tensor& logits, const std::vector<int32_t>& targets,
                         const TokenCut* cuts, float inv_temperature) {
    const TokenLogprobs out{make(DType::kFloat32, {logits.size(0)}),
                            make(DType::kFloat32, {logits.size(0)})};
    token_logprobs(out, logits, ints({logits.size(0)}, targets), cuts, inv_temperature, ctx());
    return out;
  }
  TokenCut cut_of(const Values& logits, const SamplingFilter& filter) {
    TokenCut cut;
    compute_cuts(&cut, from(DType::kFloat32, {1, static_cast<int64_t>(logits.size())}, logits),
                 filter, ctx());
    return cut;
  }
};

std::vector<int32_t> kept_tokens(const Tensor& logits, const TokenCut& cut, float inv_temperature) {
  std::vector<int32_t> kept;
  for (int32_t v = 0; v < logits.size(1); ++v) {
    if (cut.keeps(logits.data<float>()[v] * inv_temperature, v)) kept.push_back(v);
  }
  return kept;
}

TEST_F(LogSoftmaxTest, FiltersFollowTheGoldenFile) {
  std::ifstream file(std::string(GRPO_TEST_DATA_DIR) + "/golden/sampling_filters.json");
  const Json cases = Json::parse(file).at("cases");
  ASSERT_FALSE(cases.empty());
  for (const Json& test : cases) {
    const auto values = test.at("logits").get<Values>();
    const auto size = static_cast<int64_t>(values.size());
    const Tensor logits = from(DType::kFloat32, {1, size}, values);
    const SamplingFilter filter{test.at("temperature"), test.at("top_k"), test.at("top_p")};
    SCOPED_TRACE(fmt::format("temperature {} top_k {} top_p {}", filter.temperature, filter.top_k,
                             filter.top_p));
    TokenCut cut;
    compute_cuts(&cut, logits, filter, ctx());
    EXPECT_EQ(kept_tokens(logits, cut, filter.inv_temperature()),
              test.at("kept").get<std::vector<int32_t>>());
    for (int32_t v = 0; v < size; ++v) {
      const TokenLogprobs out = logprobs(logits, {v}, &cut, filter.inv_temperature());
      const TokenLogprobs raw = logprobs(logits, {v}, nullptr, 1.0f);
      EXPECT_NEAR(raw.unfiltered.data<float>()[0], test.at("raw_logprobs")[v].get<double>(),
                  kLogprob * std::abs(test.at("raw_logprobs")[v].get<double>()));
      const Json& wanted = test.at("processed_logprobs")[v];
      ASSERT_EQ(wanted.is_null(),
                !cut.keeps(logits.data<float>()[v] * filter.inv_temperature(), v));
      if (wanted.is_null()) continue;
      EXPECT_NEAR(out.processed.data<float>()[0], wanted.get<double>(),
                  kLogprob * std::max(1.0, std::abs(wanted.get<double>())));
    }
  }
}

// Kept mask and log-probability in float64, straight from the definitions.
struct Reference {
  std::vector<bool> kept;
  Values logprobs;  // over the kept set
};

Reference reference(const Values& logits, double inv_temperature, const std::vector<bool>& kept) {
  double sum = 0.0;
  for (size_t v = 0; v < logits.size(); ++v) {
    if (kept[v]) sum += std::exp(logits[v] * inv_temperature);
  }
  Reference out{kept, {}};
  for (const double logit : logits) out.logprobs.push_back(logit * inv_temperature - std::log(sum));
  return out;
}

class LogSoftmaxSizeTest : public ::testing::TestWithParam<int64_t>, public OpTestTensors {};
INSTANTIATE_TEST_SUITE_P(Vocabularies, LogSoftmaxSizeTest,
                         ::testing::Values(1, 2, 15, 16, 131, 1023, 1024, 1025, 5003));

TEST_P(LogSoftmaxSizeTest, LogprobsFollowTheFormula) {
  const int64_t size = GetParam();
  const Tensor logits = random(DType::kFloat32, {3, size}, 4.0);
  const float inv_temperature = 1.0f / 0.7f;
  std::vector<TokenCut> cuts(3);
  compute_cuts(cuts.data(), logits, {0.7f, 0, 0.9}, ctx());
  for (const int32_t target : {int32_t{0}, static_cast<int32_t>(size - 1)}) {
    const TokenLogprobs out{make(DType::kFloat32, {3}), make(DType::kFloat32, {3})};
    token_logprobs(out, logits, ints({3}, {target, target, target}), cuts.data(), inv_temperature,
                   ctx());
    for (int64_t t = 0; t < 3; ++t) {
      const Values row = values_of(logits.rows(t, 1));
      std::vector<bool> kept;
      for (int32_t v = 0; v < size; ++v) {
        const float z = static_cast<float>(row[static_cast<size_t>(v)]) * inv_temperature;
        kept.push_back(v == target || cuts[static_cast<size_t>(t)].keeps(z, v));
      }
      const std::vector<bool> all(row.size(), true);
      const auto at = static_cast<size_t>(target);
      const double processed = reference(row, double{inv_temperature}, kept).logprobs[at];
      const double unfiltered = reference(row, double{inv_temperature}, all).logprobs[at];
      EXPECT_NEAR(out.processed.data<float>()[t], processed,
                  kLogprob * std::max(1.0, std::abs(processed)));
      EXPECT_NEAR(out.unfiltered.data<float>()[t], unfiltered,
                  kLogprob * std::max(1.0, std::abs(unfiltered)));
    }
  }
}

TEST_P(LogSoftmaxSizeTest, KeepingEverythingGivesTheSameBitsAsNoCut) {
  const int64_t size = GetParam();
  const Tensor logits = random(DType::kFloat32, {1, size}, 4.0);
  // Keeps every token by its threshold, though not declared to.
  const TokenCut lowest{-1e30f, std::numeric_limits<int32_t>::max()};
  const TokenLogprobs out{make(DType::kFloat32, {1}), make(DType::kFloat32, {1})};
  token_logprobs(out, logits, ints({1}, {static_cast<int32_t>(size / 2)}), &lowest, 1.25f, ctx());
  expect_same_bits(out.processed, out.unfiltered, "threshold below all");
  const TokenCut everything;
  token_logprobs(out, logits, ints({1}, {static_cast<int32_t>(size / 2)}), &everything, 1.25f,
                 ctx());
  expect_same_bits(out.processed, out.unfiltered, "declared");
}

TEST_P(LogSoftmaxSizeTest, CutsFollowASortOfTheWholeRow) {
  const int64_t size = GetParam();
  // Few distinct values, so that ties fall on every border.
  Values row;
  for (int64_t v = 0; v < size; ++v)
    row.push_back(0.25 * static_cast<double>(mix_bits(v + 1) % 23));
  const Tensor logits = from(DType::kFloat32, {1, size}, row);
  std::vector<int32_t> order(row.size());
  for (size_t v = 0; v < order.size(); ++v) order[v] = static_cast<int32_t>(v);
  const auto logit = [&](int32_t v) { return row[static_cast<size_t>(v)]; };
  // Relative to the largest, so that p of n equal tokens is exact here as well.
  const double largest = *std::max_element(row.begin(), row.end());
  const auto weight = [&](int32_t v) { return std::exp(logit(v) - largest); };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  for (const int32_t top_k : {0, 1, 3, 40, 1000}) {
    for (const double top_p : {1.0, 0.999, 0.7, 0.2, 1e-6}) {
      std::vector<int32_t> wanted = order;
      if (top_k > 0 && top_k < size) {
        const double kth = logit(order[static_cast<size_t>(top_k - 1)]);
        std::erase_if(wanted, [&](int32_t v) { return logit(v) < kth; });
      }
      double total = 0.0;
      for (const int32_t v : wanted) total += weight(v);
      double mass = 0.0;
      size_t count = 0;
      while (count < wanted.size() &&
             (count == 0 || (top_p < 1.0 && mass < top_p * total) || top_p == 1.0)) {
        mass += weight(wanted[count++]);
      }
      wanted.resize(count);
      std::sort(wanted.begin(), wanted.end());
      TokenCut cut;
      compute_cuts(&cut, logits, {1.0f, top_k, top_p}, ctx());
      EXPECT_EQ(kept_tokens(logits, cut, 1.0f), wanted) << "top_k " << top_k << " top_p " << top_p;
    }
  }
}

TEST_F(LogSoftmaxTest, TopPCountsEqualTokensExactly) {
  const Values equal(10, 0.5);
  EXPECT_EQ(cut_of(equal, {1.0f, 0, 0.8}), (TokenCut{0.5f, 7}));
  EXPECT_EQ(cut_of(equal, {1.0f, 0, 0.81}), (TokenCut{0.5f, 8}));
  EXPECT_EQ(cut_of(equal, {1.0f, 3, 1.0}), (TokenCut{0.5f, std::numeric_limits<int32_t>::max()}));
}

TEST_F(LogSoftmaxTest, SignedZerosTie) {
  EXPECT_EQ(cut_of({-0.0, 0.0, -0.0, -9.0}, {1.0f, 0, 0.5}), (TokenCut{0.0f, 1}));
}

TEST_F(LogSoftmaxTest, FiltersThatAreOffKeepEverything) {
  EXPECT_TRUE(cut_of({1.0, -kInfinity, 3.0}, {0.5f, 0, 1.0}).keeps_everything());
  EXPECT_TRUE(cut_of({1.0, 2.0, 3.0}, {0.5f, 3, 1.0}).keeps_everything());
  EXPECT_FALSE(cut_of({1.0, 2.0, 3.0}, {0.5f, 2, 1.0}).keeps_everything());
}

TEST_F(LogSoftmaxTest, ExcludedLogitsTakeNoPart) {
  const Tensor logits = from(DType::kFloat32, {1, 4}, {0.0, -kInfinity, 0.0, -kInfinity});
  const TokenLogprobs out = logprobs(logits, {2}, nullptr, 1.0f);
  EXPECT_NEAR(out.processed.data<float>()[0], std::log(0.5), kLogprob);
  EXPECT_EQ(logprobs(logits, {1}, nullptr, 1.0f).processed.data<float>()[0], -kInfinity);
}

TEST_F(LogSoftmaxTest, TargetBelowItsStoredThresholdStillCounts) {
  const Tensor logits = from(DType::kFloat32, {1, 3}, {1.0, 2.0, 0.0});
  const TokenCut cut{1.5f, 0};
  const TokenLogprobs out = logprobs(logits, {2}, &cut, 1.0f);
  EXPECT_NEAR(out.processed.data<float>()[0], -std::log(1.0 + std::exp(2.0)), kLogprob * 3);
}

// d loss / d logits against central differences of the formula, with and without cuts.
TEST_F(LogSoftmaxTest, BackwardIsTheDerivative) {
  for (const int64_t size : {1, 2, 37, 1030}) {
    const Tensor logits = random(DType::kFloat32, {3, size}, 2.0);
    const float inv_temperature = 1.25f;
    std::vector<TokenCut> cuts(3);
    compute_cuts(cuts.data(), logits, {0.8f, 5, 0.9}, ctx());
    cuts[2] = {};
    const auto last = static_cast<int32_t>(size - 1);
    const std::vector<int32_t> targets{0, last, last / 2};
    const Tensor dprocessed = from(DType::kFloat32, {3}, {0.7, -1.5, 0.25});
    const Tensor dunfiltered = from(DType::kFloat32, {3}, {-0.4, 0.0, 2.0});
    // The kept set does not move under a small step.
    std::vector<std::vector<bool>> kept(3);
    for (size_t t = 0; t < 3; ++t) {
      for (int32_t v = 0; v < size; ++v) {
        const float z = logits.data<float>()[static_cast<int64_t>(t) * size + v] * inv_temperature;
        kept[t].push_back(v == targets[t] || cuts[t].keeps(z, v));
      }
    }
    const auto loss = [&](const Values& at) {
      double total = 0.0;
      for (size_t t = 0; t < 3; ++t) {
        const auto begin = at.begin() + static_cast<int64_t>(t) * size;
        const Values row(begin, begin + size);
        const auto target = static_cast<size_t>(targets[t]);
        const double inverse = inv_temperature;
        total +=
            double{dprocessed.data<float>()[t]} * reference(row, inverse, kept[t]).logprobs[target];
        total += double{dunfiltered.data<float>()[t]} *
                 reference(row, inverse, std::vector<bool>(row.size(), true)).logprobs[target];
      }
      return total;
    };
    const Values before = values_of(logits);
    token_logprobs_backward(logits, logits, {dprocessed, dunfiltered}, ints({3}, targets),
                            cuts.data(), inv_temperature, ctx());
    expect_gradient(logits, loss, before, {kLogprobGradient, 0.0}, "dlogits");
  }
}

// With the sums of the forward, into other memory, and rounded once: the same gradients.
TEST_F(LogSoftmaxTest, BackwardFromSumsIsTheSame) {
  constexpr int64_t kSize = 1030;
  const Tensor logits = random(DType::kFloat32, {4, kSize}, 2.0);
  std::vector<TokenCut> cuts(4);
  compute_cuts(cuts.data(), logits, {0.8f, 5, 0.9}, ctx());
  cuts[2] = {};
  const Tensor targets = ints({4}, {0, 1029, 17, 3});
  const Tensor dprocessed = from(DType::kFloat32, {4}, {0.7, -1.5, 0.25, 0.0});
  const Tensor dunfiltered = from(DType::kFloat32, {4}, {-0.4, 0.0, 2.0, 0.0});
  const TokenLogprobs out{make(DType::kFloat32, {4}), make(DType::kFloat32, {4}),
                          make(DType::kUint8, {4, kRowSumsBytes})};
  token_logprobs(out, logits, targets, cuts.data(), 1.25f, ctx());
  const Values before = values_of(logits);
  const Tensor dlogits = make(DType::kFloat32, logits.shape());
  const Tensor rounded = make(DType::kBfloat16, logits.shape());
  for (const Tensor& to : {dlogits, rounded}) {
    token_logprobs_backward(to, logits, {dprocessed, dunfiltered, out.sums}, targets, cuts.data(),
                            1.25f, ctx());
  }
  EXPECT_EQ(values_of(logits), before);
  token_logprobs_backward(logits, logits, {dprocessed, dunfiltered}, targets, cuts.data(), 1.25f,
                          ctx());
  EXPECT_EQ(values_of(dlogits), values_of(logits));
  for (int64_t i = 0; i < 4 * kSize; ++i) {
    ASSERT_EQ(rounded.data<Bfloat16>()[i].bits, Bfloat16(logits.data<float>()[i]).bits) << i;
  }
  // They are taken from there, not found again.
  fill_zero(out.sums);
  token_logprobs_backward(dlogits, logits, {dprocessed, dunfiltered, out.sums}, targets,
                          cuts.data(), 1.25f, ctx());
  EXPECT_FALSE(std::isfinite(values_of(dlogits)[5]));
}

TEST_F(LogSoftmaxTest, RowsWithoutGradientBecomeZero) {
  const Tensor logits = random(DType::kFloat32, {2, 50});
  poison_memory(logits.rows(0, 1).raw(), logits.rows(0, 1).size_bytes(), Device::cpu());
  token_logprobs_backward(logits, logits, {from(DType::kFloat32, {2}, {0.0, 1.0}), Tensor()},
                          ints({2}, {3, 4}), nullptr, 1.0f, ctx());
  EXPECT_EQ(values_of(logits.rows(0, 1)), Values(50, 0.0));
  EXPECT_GT(logits.data<float>()[54], 0.0f);
}

TEST_F(LogSoftmaxTest, NonFiniteRowsAreNamed) {
  for (const double bad : {std::nan(""), kInfinity}) {
    for (const int64_t column : {0, 2077}) {
      const Tensor logits = random(DType::kFloat32, {3, 2078});
      logits.data<float>()[2078 + column] = static_cast<float>(bad);
      std::vector<TokenCut> cuts(3);
      const auto expect_row_1 = [](const std::function<void()>& call) {
        try {
          call();
          ADD_FAILURE() << "a non-finite logit was taken";
        } catch (const NonFiniteError& error) {
          EXPECT_NE(std::string(error.what()).find("row 1"), std::string::npos) << error.what();
        }
      };
      expect_row_1([&] { compute_cuts(cuts.data(), logits, {1.0f, 5, 0.9}, ctx()); });
      expect_row_1([&] { logprobs(logits, {0, 0, 0}, nullptr, 1.0f); });
      expect_row_1([&] {
        token_logprobs_backward(logits, logits, {from(DType::kFloat32, {3}, {1, 1, 1}), Tensor()},
                                ints({3}, {0, 0, 0}), nullptr, 1.0f, ctx());
      });
    }
  }
  EXPECT_THROW(cut_of({-kInfinity, -kInfinity}, {}), NonFiniteError);
}

TEST_F(LogSoftmaxTest, ZeroRowsAndChecks) {
  const Tensor none = make(DType::kFloat32, {0, 7});
  compute_cuts(nullptr, none, {1.0f, 3, 0.5}, ctx());
  logprobs(none, {}, nullptr, 1.0f);
  const Tensor empty = make(DType::kFloat32, {0});
  token_logprobs_backward(none, none, {empty, empty}, ints({0}, {}), nullptr, 1.0f, ctx());

  const Tensor logits = random(DType::kFloat32, {1, 7});
  TokenCut cut;
  EXPECT_THROW(compute_cuts(&cut, logits, {0.0f, 0, 1.0}, ctx()), InternalError);
  EXPECT_THROW(compute_cuts(&cut, logits, {1.0f, -1, 1.0}, ctx()), InternalError);
  EXPECT_THROW(compute_cuts(&cut, logits, {1.0f, 0, 0.0}, ctx()), InternalError);
  EXPECT_THROW(compute_cuts(&cut, random(DType::kBfloat16, {1, 7}), {}, ctx()), InternalError);
  EXPECT_THROW(logprobs(logits, {7}, nullptr, 1.0f), InternalError);
  EXPECT_THROW(logprobs(logits, {-1}, nullptr, 1.0f), InternalError);
  EXPECT_THROW(token_logprobs({empty, empty}, logits, ints({1}, {0}), nullptr, 1.0f, ctx()),
               InternalError);
}

}  // namespace
}  // namespace grpo::ops
