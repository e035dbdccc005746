// T tokens, V vocabulary.
#include "model/ops/log_softmax.h"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/ops/kept_sets.h"

namespace grpo::ops {
namespace {

using Json = nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class LogSoftmaxTest : public KeptSetTest {
 protected:
  TokenLogprobs logprobs(const Tensor& logits, const std::vector<int32_t>& targets,
                         const KeptTokensView& kept, float inv_temperature) {
    const TokenLogprobs out{make(DType::kFloat32, {logits.size(0)}),
                            make(DType::kFloat32, {logits.size(0)})};
    token_logprobs(out, logits, ints({logits.size(0)}, targets), kept, inv_temperature, ctx());
    return out;
  }
  KeptTokens kept_of(const Values& logits, const SamplingFilter& filter) {
    return filtered(from(DType::kFloat32, {1, static_cast<int64_t>(logits.size())}, logits),
                    filter);
  }
  // The tokens that a filter keeps of one row, whichever way they are stored.
  std::vector<int32_t> tokens_of(const Values& logits, SamplingFilter filter) {
    const Tensor row = from(DType::kFloat32, {1, static_cast<int64_t>(logits.size())}, logits);
    filter.max_kept_ids = 0;
    const auto by_threshold =
        members(filtered(row, filter).view(), row, filter.inv_temperature())[0];
    filter.max_kept_ids = 256;
    const auto by_id = members(filtered(row, filter).view(), row, filter.inv_temperature())[0];
    EXPECT_EQ(by_threshold, by_id);
    return by_id;
  }
};

// Stored by id up to this size: always, sometimes, never.
constexpr int32_t kMaxKeptIds[] = {256, 4, 0};

KeptTokens keeping(const std::vector<KeptThreshold>& thresholds) {
  KeptTokens kept;
  for (const KeptThreshold& threshold : thresholds) kept.append_threshold(threshold);
  return kept;
}

// NeMo-RL's rule for top-k, which the golden file follows: ties with the k-th are all kept.
std::vector<int32_t> with_all_ties(const Values& logits, size_t top_k) {
  Values sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  std::vector<int32_t> kept;
  for (size_t v = 0; v < logits.size(); ++v) {
    if (logits[v] >= sorted[top_k - 1]) kept.push_back(static_cast<int32_t>(v));
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
    const int32_t top_k = test.at("top_k");
    // No case of the file ties with its k-th token, so that it speaks for our rule too: exactly k.
    if (top_k > 0) {
      ASSERT_EQ(with_all_ties(values, static_cast<size_t>(top_k)).size(),
                static_cast<size_t>(top_k));
    }
    for (const int32_t max_kept_ids : kMaxKeptIds) {
      const SamplingFilter filter{test.at("temperature"), top_k, test.at("top_p"), max_kept_ids};
      SCOPED_TRACE(fmt::format("temperature {} top_k {} top_p {}", filter.temperature, filter.top_k,
                               filter.top_p));
      const KeptTokens kept = filtered(logits, filter);
      const auto tokens = members(kept.view(), logits, filter.inv_temperature())[0];
      EXPECT_EQ(tokens, test.at("kept").get<std::vector<int32_t>>());
      EXPECT_EQ(kept.num_ids() > 0, static_cast<int64_t>(tokens.size()) <= max_kept_ids);
      for (int32_t v = 0; v < size; ++v) {
        const TokenLogprobs out = logprobs(logits, {v}, kept.view(), filter.inv_temperature());
        const TokenLogprobs raw = logprobs(logits, {v}, {}, 1.0f);
        EXPECT_NEAR(raw.unfiltered.data<float>()[0], test.at("raw_logprobs")[v].get<double>(),
                    kLogprob * std::abs(test.at("raw_logprobs")[v].get<double>()));
        const Json& wanted = test.at("processed_logprobs")[v];
        ASSERT_EQ(wanted.is_null(), std::find(tokens.begin(), tokens.end(), v) == tokens.end());
        if (wanted.is_null()) continue;
        EXPECT_NEAR(out.processed.data<float>()[0], wanted.get<double>(),
                    kLogprob * std::max(1.0, std::abs(wanted.get<double>())));
      }
    }
  }
}

// Where logits tie with the k-th, NeMo-RL keeps them all; we keep k, the lower ids.
TEST_F(LogSoftmaxTest, TopKKeepsExactlyKTokens) {
  const Values logits{2.0, 1.0, 3.0, 1.0, 0.5, 1.0, 1.0};
  EXPECT_EQ(with_all_ties(logits, 4), (std::vector<int32_t>{0, 1, 2, 3, 5, 6}));
  EXPECT_EQ(tokens_of(logits, {1.0f, 4, 1.0}), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(tokens_of(logits, {1.0f, 3, 1.0}), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(tokens_of(logits, {1.0f, 2, 1.0}), with_all_ties(logits, 2));
  EXPECT_EQ(tokens_of(Values(40, 0.5), {1.0f, 1, 1.0}), (std::vector<int32_t>{0}));
  // Top-p goes on with what top-k left: half of four equal tokens is two.
  EXPECT_EQ(tokens_of(Values(9, 0.5), {1.0f, 4, 0.5}), (std::vector<int32_t>{0, 1}));
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

class LogSoftmaxSizeTest : public ::testing::TestWithParam<int64_t>, public KeptSetTestTensors {};
INSTANTIATE_TEST_SUITE_P(Vocabularies, LogSoftmaxSizeTest,
                         ::testing::Values(1, 2, 15, 16, 131, 1023, 1024, 1025, 5003));

TEST_P(LogSoftmaxSizeTest, LogprobsFollowTheFormula) {
  const int64_t size = GetParam();
  const Tensor logits = random(DType::kFloat32, {3, size}, 4.0);
  const float inv_temperature = 1.0f / 0.7f;
  for (const int32_t max_kept_ids : kMaxKeptIds) {
    const KeptTokens stored = filtered(logits, {0.7f, 0, 0.9, max_kept_ids});
    const auto tokens = members(stored.view(), logits, inv_temperature);
    for (const int32_t target : {int32_t{0}, static_cast<int32_t>(size - 1)}) {
      const TokenLogprobs out{make(DType::kFloat32, {3}), make(DType::kFloat32, {3})};
      token_logprobs(out, logits, ints({3}, {target, target, target}), stored.view(),
                     inv_temperature, ctx());
      for (int64_t t = 0; t < 3; ++t) {
        const Values row = values_of(logits.rows(t, 1));
        std::vector<bool> kept(row.size(), false);
        for (const int32_t v : tokens[static_cast<size_t>(t)]) kept[static_cast<size_t>(v)] = true;
        kept[static_cast<size_t>(target)] = true;
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
}

TEST_P(LogSoftmaxSizeTest, KeepingEverythingGivesTheSameBitsAsNoCut) {
  const int64_t size = GetParam();
  const Tensor logits = random(DType::kFloat32, {1, size}, 4.0);
  // Keeps every token by its threshold, though not declared to.
  const KeptTokens lowest = keeping({{-1e30, std::numeric_limits<int32_t>::max()}});
  const TokenLogprobs out{make(DType::kFloat32, {1}), make(DType::kFloat32, {1})};
  token_logprobs(out, logits, ints({1}, {static_cast<int32_t>(size / 2)}), lowest.view(), 1.25f,
                 ctx());
  expect_same_bits(out.processed, out.unfiltered, "threshold below all");
  const KeptTokens everything = keeping({{}});
  token_logprobs(out, logits, ints({1}, {static_cast<int32_t>(size / 2)}), everything.view(), 1.25f,
                 ctx());
  expect_same_bits(out.processed, out.unfiltered, "declared");
  std::vector<uint32_t> every_id(static_cast<size_t>(size));
  std::iota(every_id.begin(), every_id.end(), 0u);
  KeptTokens listed;
  listed.append_ids(every_id);
  token_logprobs(out, logits, ints({1}, {static_cast<int32_t>(size / 2)}), listed.view(), 1.25f,
                 ctx());
  expect_same_bits(out.processed, out.unfiltered, "listed");
}

TEST_P(LogSoftmaxSizeTest, SetsFollowASortOfTheWholeRow) {
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
        wanted.resize(static_cast<size_t>(top_k));
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
      for (const int32_t max_kept_ids : kMaxKeptIds) {
        const KeptTokens kept = filtered(logits, {1.0f, top_k, top_p, max_kept_ids});
        EXPECT_EQ(members(kept.view(), logits, 1.0f)[0], wanted)
            << "top_k " << top_k << " top_p " << top_p << " max_kept_ids " << max_kept_ids;
        const auto num_kept = static_cast<int64_t>(wanted.size());
        EXPECT_EQ(kept.num_ids(), num_kept <= max_kept_ids && num_kept < size ? num_kept : 0);
      }
    }
  }
}

TEST_F(LogSoftmaxTest, TopPCountsEqualTokensExactly) {
  const Values equal(10, 0.5);
  EXPECT_EQ(tokens_of(equal, {1.0f, 0, 0.8}), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(tokens_of(equal, {1.0f, 0, 0.81}), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(LogSoftmaxTest, SignedZerosTie) {
  EXPECT_EQ(tokens_of({-0.0, 0.0, -0.0, -9.0}, {1.0f, 0, 0.5}), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(tokens_of({0.0, -0.0, 0.0, -9.0}, {1.0f, 2, 1.0}), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(tokens_of({-9.0, -0.0, 0.0}, {1.0f, 1, 1.0}), (std::vector<int32_t>{1}));
}

TEST_F(LogSoftmaxTest, FiltersThatAreOffKeepEverything) {
  const KeptTokens everything = keeping({{}});
  EXPECT_EQ(kept_of({1.0, -kInfinity, 3.0}, {0.5f, 0, 1.0}), everything);
  EXPECT_EQ(kept_of({1.0, 2.0, 3.0}, {0.5f, 3, 1.0}), everything);
  EXPECT_NE(kept_of({1.0, 2.0, 3.0}, {0.5f, 2, 1.0}), everything);
}

TEST_F(LogSoftmaxTest, ExcludedLogitsTakeNoPart) {
  const Tensor logits = from(DType::kFloat32, {1, 4}, {0.0, -kInfinity, 0.0, -kInfinity});
  const TokenLogprobs out = logprobs(logits, {2}, {}, 1.0f);
  EXPECT_NEAR(out.processed.data<float>()[0], std::log(0.5), kLogprob);
  EXPECT_EQ(logprobs(logits, {1}, {}, 1.0f).processed.data<float>()[0], -kInfinity);
}

TEST_F(LogSoftmaxTest, TargetOutsideItsStoredSetStillCounts) {
  const Tensor logits = from(DType::kFloat32, {1, 3}, {1.0, 2.0, 0.0});
  KeptTokens by_id;
  by_id.append_ids(std::vector<uint32_t>{1});
  const double log_sum_exp = log_sum_exps(logits, 1.0f)[0];
  for (const KeptTokens& kept : {by_id, keeping({{1.5 - log_sum_exp, -1}})}) {
    const TokenLogprobs out = logprobs(logits, {2}, kept.view(), 1.0f);
    EXPECT_NEAR(out.processed.data<float>()[0], -std::log(1.0 + std::exp(2.0)), kLogprob * 3);
  }
}

// d loss / d logits against central differences of the formula, with and without filters.
TEST_F(LogSoftmaxTest, BackwardIsTheDerivative) {
  for (const auto& [size, max_kept_ids] : std::vector<std::pair<int64_t, int32_t>>{
           {1, 256}, {2, 256}, {2, 0}, {37, 256}, {37, 0}, {1030, 256}, {1030, 0}}) {
    const Tensor logits = random(DType::kFloat32, {3, size}, 2.0);
    const float inv_temperature = 1.25f;
    KeptTokens stored = filtered(logits.rows(0, 2), {0.8f, 5, 0.9, max_kept_ids});
    stored.append_threshold({});
    const auto tokens = members(stored.view(), logits, inv_temperature);
    const auto last = static_cast<int32_t>(size - 1);
    const std::vector<int32_t> targets{0, last, last / 2};
    const Tensor dprocessed = from(DType::kFloat32, {3}, {0.7, -1.5, 0.25});
    const Tensor dunfiltered = from(DType::kFloat32, {3}, {-0.4, 0.0, 2.0});
    // The kept set does not move under a small step.
    std::vector<std::vector<bool>> kept(3, std::vector<bool>(static_cast<size_t>(size)));
    for (size_t t = 0; t < 3; ++t) {
      for (const int32_t v : tokens[t]) kept[t][static_cast<size_t>(v)] = true;
      kept[t][static_cast<size_t>(targets[t])] = true;
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
                            stored.view(), inv_temperature, ctx());
    expect_gradient(logits, loss, before, {kLogprobGradient, 0.0}, "dlogits");
  }
}

// With the sums of the forward, into other memory, and rounded once: the same gradients.
TEST_F(LogSoftmaxTest, BackwardFromSumsIsTheSame) {
  constexpr int64_t kSize = 1030;
  const Tensor logits = random(DType::kFloat32, {4, kSize}, 2.0);
  // A row by id, one by a threshold, one that keeps everything.
  KeptTokens kept = filtered(logits.rows(0, 1), {0.8f, 5, 0.9});
  kept.append(filtered(logits.rows(1, 1), {0.8f, 5, 0.9, 0}).view());
  kept.append_threshold({});
  kept.append(filtered(logits.rows(3, 1), {0.8f, 5, 0.9}).view());
  const Tensor targets = ints({4}, {0, 1029, 17, 3});
  const Tensor dprocessed = from(DType::kFloat32, {4}, {0.7, -1.5, 0.25, 0.0});
  const Tensor dunfiltered = from(DType::kFloat32, {4}, {-0.4, 0.0, 2.0, 0.0});
  const TokenLogprobs out{make(DType::kFloat32, {4}), make(DType::kFloat32, {4}),
                          make(DType::kUint8, {4, kRowSumsBytes})};
  token_logprobs(out, logits, targets, kept.view(), 1.25f, ctx());
  const Values before = values_of(logits);
  const Tensor dlogits = make(DType::kFloat32, logits.shape());
  const Tensor rounded = make(DType::kBfloat16, logits.shape());
  for (const Tensor& to : {dlogits, rounded}) {
    token_logprobs_backward(to, logits, {dprocessed, dunfiltered, out.sums}, targets, kept.view(),
                            1.25f, ctx());
  }
  EXPECT_EQ(values_of(logits), before);
  token_logprobs_backward(logits, logits, {dprocessed, dunfiltered}, targets, kept.view(), 1.25f,
                          ctx());
  EXPECT_EQ(values_of(dlogits), values_of(logits));
  for (int64_t i = 0; i < 4 * kSize; ++i) {
    ASSERT_EQ(rounded.data<Bfloat16>()[i].bits, Bfloat16(logits.data<float>()[i]).bits) << i;
  }
  // They are taken from there, not found again.
  fill_zero(out.sums);
  token_logprobs_backward(dlogits, logits, {dprocessed, dunfiltered, out.sums}, targets,
                          kept.view(), 1.25f, ctx());
  EXPECT_FALSE(std::isfinite(values_of(dlogits)[5]));
}

TEST_F(LogSoftmaxTest, RowsWithoutGradientBecomeZero) {
  const Tensor logits = random(DType::kFloat32, {2, 50});
  poison_memory(logits.rows(0, 1).raw(), logits.rows(0, 1).size_bytes(), Device::cpu());
  token_logprobs_backward(logits, logits, {from(DType::kFloat32, {2}, {0.0, 1.0}), Tensor()},
                          ints({2}, {3, 4}), {}, 1.0f, ctx());
  EXPECT_EQ(values_of(logits.rows(0, 1)), Values(50, 0.0));
  EXPECT_GT(logits.data<float>()[54], 0.0f);
}

TEST_F(LogSoftmaxTest, NonFiniteRowsAreNamed) {
  for (const double bad : {std::nan(""), kInfinity}) {
    for (const int64_t column : {0, 2077}) {
      const Tensor logits = random(DType::kFloat32, {3, 2078});
      logits.data<float>()[2078 + column] = static_cast<float>(bad);
      KeptTokens kept;
      const auto expect_row_1 = [](const std::function<void()>& call) {
        try {
          call();
          ADD_FAILURE() << "a non-finite logit was taken";
        } catch (const NonFiniteError& error) {
          EXPECT_NE(std::string(error.what()).find("row 1"), std::string::npos) << error.what();
        }
      };
      expect_row_1([&] { filter_tokens(kept, logits, {1.0f, 5, 0.9}, ctx()); });
      expect_row_1([&] { logprobs(logits, {0, 0, 0}, {}, 1.0f); });
      expect_row_1([&] {
        token_logprobs_backward(logits, logits, {from(DType::kFloat32, {3}, {1, 1, 1}), Tensor()},
                                ints({3}, {0, 0, 0}), {}, 1.0f, ctx());
      });
    }
  }
  EXPECT_THROW(kept_of({-kInfinity, -kInfinity}, {}), NonFiniteError);
}

TEST_F(LogSoftmaxTest, ZeroRowsAndChecks) {
  const Tensor none = make(DType::kFloat32, {0, 7});
  KeptTokens kept;
  filter_tokens(kept, none, {1.0f, 3, 0.5}, ctx());
  EXPECT_TRUE(kept.empty());
  logprobs(none, {}, {}, 1.0f);
  const Tensor empty = make(DType::kFloat32, {0});
  token_logprobs_backward(none, none, {empty, empty}, ints({0}, {}), {}, 1.0f, ctx());

  const Tensor logits = random(DType::kFloat32, {1, 7});
  EXPECT_THROW(filter_tokens(kept, logits, {0.0f, 0, 1.0}, ctx()), InternalError);
  EXPECT_THROW(filter_tokens(kept, logits, {1.0f, -1, 1.0}, ctx()), InternalError);
  EXPECT_THROW(filter_tokens(kept, logits, {1.0f, 0, 0.0}, ctx()), InternalError);
  EXPECT_THROW(filter_tokens(kept, random(DType::kBfloat16, {1, 7}), {}, ctx()), InternalError);
  EXPECT_THROW(logprobs(logits, {7}, {}, 1.0f), InternalError);
  EXPECT_THROW(logprobs(logits, {-1}, {}, 1.0f), InternalError);
  EXPECT_THROW(token_logprobs({empty, empty}, logits, ints({1}, {0}), {}, 1.0f, ctx()),
               InternalError);
  EXPECT_THROW(logprobs(logits, {0}, keeping({{}, {}}).view(), 1.0f), InternalError);
}

}  // namespace
}  // namespace grpo::ops
