// T rows, V vocabulary.
#include "model/ops/kept_tokens.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "model/ops/sampler.h"
#include "tests/ops/kept_sets.h"
#include "tests/ops/token_draws.h"

namespace grpo::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kLastToken = std::numeric_limits<int32_t>::max();

float ulps_below(float value, int ulps) {
  for (int i = 0; i < ulps; ++i) value = std::nextafter(value, -kInfinity);
  return value;
}

// As a set keeps it, by the definition.
bool keeps(const KeptThreshold& threshold, float z, int32_t token, double log_sum_exp) {
  const double relative = static_cast<double>(z) - log_sum_exp;
  return relative > threshold.above || (relative == threshold.above && token <= threshold.last_tie);
}

// Last kept logits of many magnitudes and both signs.
constexpr float kLastKept[] = {1e-30f, -1e-30f, 1e-9f,  -1e-9f, 1.0f,  -1.0f,  0.0f,
                               80.0f,  -80.0f,  0.125f, -17.3f, 3e-4f, 1e-45f, -3.5e3f};
// What rows of such logits have; the border's own logit among them, and far from it.
constexpr double kLogSumExps[] = {0.0, 1e-9, 0.7, -0.7, 11.93, 80.3, -79.9};

// The threshold keeps the last kept token and drops the first dropped one; gaps of 1 ulp and more.
TEST(KeptThresholdTest, StandsBetweenTheLastKeptAndTheFirstDropped) {
  int num_separated = 0;
  for (const float last_kept : kLastKept) {
    for (const int gap : {1, 2, 3, 1000}) {
      for (const double log_sum_exp : kLogSumExps) {
        const float first_dropped = ulps_below(last_kept, gap);
        const KeptBorder border{last_kept, first_dropped, 17, log_sum_exp};
        const KeptThreshold threshold = threshold_at(border);
        const bool kept_one = keeps(threshold, last_kept, 5, log_sum_exp);
        const bool dropped_other = !keeps(threshold, first_dropped, 5, log_sum_exp);
        EXPECT_EQ(separates(threshold, border),
                  kept_one && dropped_other &&
                      // Neither side may stand on the threshold itself.
                      static_cast<double>(first_dropped) - log_sum_exp != threshold.above)
            << last_kept << " gap " << gap << " lse " << log_sum_exp;
        // Logits of order 1 and above are told apart by float64 under any such log-sum-exp.
        if (std::abs(last_kept) >= 0.125f) {
          EXPECT_TRUE(separates(threshold, border)) << last_kept << " gap " << gap;
        }
        num_separated += separates(threshold, border) ? 1 : 0;
        // In the middle of the gap.
        EXPECT_NEAR(threshold.above + log_sum_exp,
                    (static_cast<double>(last_kept) + first_dropped) / 2,
                    1e-15 * std::max(std::abs(log_sum_exp), 1.0) + 1e-15 * std::abs(last_kept));
      }
    }
  }
  EXPECT_GT(num_separated, 0);
}

// Logits of 1e-30 vanish beside a log-sum-exp of order 1: such a set needs its ids.
TEST(KeptThresholdTest, SaysWhereItCannotSeparate) {
  for (const float last_kept : {1e-30f, -1e-30f, 0.0f, -0.0f}) {
    const KeptBorder border{last_kept, ulps_below(last_kept, 1), 3, 1.5};
    EXPECT_FALSE(separates(threshold_at(border), border)) << last_kept;
    const KeptBorder alone{last_kept, ulps_below(last_kept, 1), 3, 0.0};
    EXPECT_TRUE(separates(threshold_at(alone), alone)) << last_kept;
  }
  // A threshold on one of the two sides, as rounding could leave it.
  const KeptBorder border{2.0f, 1.0f, 3, 0.5};
  EXPECT_FALSE(separates({1.5, -1}, border));
  EXPECT_FALSE(separates({0.5, -1}, border));
  EXPECT_FALSE(separates({1.6, -1}, border));
  EXPECT_FALSE(separates({0.4, -1}, border));
  EXPECT_TRUE(separates({1.0, -1}, border));
}

TEST(KeptThresholdTest, EqualLogitsAreToldApartByTheLastId) {
  for (const float logit : {1e-30f, 1e-9f, 1.0f, 80.0f, -3.0f, 0.0f, -0.0f}) {
    for (const double log_sum_exp : kLogSumExps) {
      // -0 and 0 tie.
      for (const float dropped : {logit, logit == 0.0f ? -logit : logit}) {
        const KeptBorder border{logit, dropped, 17, log_sum_exp};
        const KeptThreshold threshold = threshold_at(border);
        EXPECT_EQ(threshold.last_tie, 17);
        EXPECT_TRUE(separates(threshold, border));
        EXPECT_TRUE(keeps(threshold, logit, 17, log_sum_exp));
        EXPECT_TRUE(keeps(threshold, dropped, 0, log_sum_exp));
        EXPECT_FALSE(keeps(threshold, dropped, 18, log_sum_exp));
        EXPECT_TRUE(keeps(threshold, logit + 1.0f, kLastToken, log_sum_exp));
        EXPECT_FALSE(keeps(threshold, logit - 1.0f, 0, log_sum_exp));
        const RowCut cut = row_cut_of(threshold, log_sum_exp);
        EXPECT_TRUE(cut.keeps(logit, 17));
        EXPECT_TRUE(cut.keeps(dropped, 17));
        EXPECT_FALSE(cut.keeps(logit, 18));
        EXPECT_FALSE(cut.keeps(dropped, 18));
      }
    }
  }
}

// Nothing but tokens of probability 0 was dropped: every finite logit stays, whatever it becomes.
TEST(KeptThresholdTest, AboveMinusInfinityEveryFiniteLogitIsKept) {
  for (const float last_kept : {-1e30f, -80.0f, 0.0f, 3.0f}) {
    const KeptBorder border{last_kept, -kInfinity, 17, 2.5};
    const KeptThreshold threshold = threshold_at(border);
    EXPECT_TRUE(separates(threshold, border));
    for (const double log_sum_exp : {2.5, -100.0, 100.0}) {
      const RowCut cut = row_cut_of(threshold, log_sum_exp);
      EXPECT_TRUE(cut.keeps(std::numeric_limits<float>::lowest(), kLastToken));
      EXPECT_FALSE(cut.keeps(-kInfinity, 0));
      EXPECT_FALSE(cut.keeps_everything());
    }
  }
  // Some tokens of probability 0 are in the set, others not: no one can tell by their weight.
  const KeptBorder border{-kInfinity, -kInfinity, 4, 2.5};
  EXPECT_TRUE(separates(threshold_at(border), border));
  EXPECT_TRUE(row_cut_of(threshold_at(border), 2.5).keeps(-1e30f, 9));
}

TEST(RowCutTest, TheDefaultKeepsEverything) {
  for (const double log_sum_exp : kLogSumExps) {
    const RowCut cut = row_cut_of({}, log_sum_exp);
    EXPECT_TRUE(cut.keeps_everything());
    EXPECT_TRUE(cut.keeps(-kInfinity, 5));
    EXPECT_TRUE(cut.keeps(3.0f, kLastToken));
  }
  EXPECT_TRUE(RowCut{}.keeps_everything());
  EXPECT_FALSE((RowCut{1.0f, 1.0f, kLastToken}.keeps_everything()));
  EXPECT_FALSE((RowCut{0.0f, -kInfinity, 5}.keeps_everything()));
}

// The cut of another row than the threshold's, with another log-sum-exp, keeps what the definition
// keeps in float64: at every neighbour of the border too.
TEST(RowCutTest, EqualsTheFloat64ComparisonUnderAnotherRowsLogSumExp) {
  int64_t num_ties = 0;
  for (uint64_t row = 0; row < 3000; ++row) {
    const auto draw = [&](uint64_t i) { return normal_at(3, row, 1, i); };
    // Magnitudes from 1e-9 to 1e2, borders of gap 0, 1 ulp and more.
    const float scale = std::pow(10.0f, static_cast<float>(row % 12) - 9.0f);
    const float last_kept = scale * draw(0);
    const double own_lse = static_cast<double>(draw(1)) * 5.0;
    const double other_lse = own_lse + static_cast<double>(draw(2)) * (row % 2 == 0 ? 1e-6 : 3.0);
    const KeptBorder border{last_kept, ulps_below(last_kept, static_cast<int>(row % 3)), 40,
                            own_lse};
    const KeptThreshold threshold = threshold_at(border);
    for (const double log_sum_exp : {own_lse, other_lse}) {
      const RowCut cut = row_cut_of(threshold, log_sum_exp);
      std::vector<float> logits{0.0f, -0.0f, -kInfinity, last_kept};
      // Where the border lies in this row, and what is next to it.
      auto border_logit = static_cast<float>(threshold.above + log_sum_exp);
      for (int i = 0; i < 4; ++i) border_logit = std::nextafter(border_logit, kInfinity);
      for (int i = 0; i < 9; ++i) logits.push_back(ulps_below(border_logit, i));
      for (uint64_t i = 0; i < 20; ++i) logits.push_back(scale * draw(10 + i));
      for (const float z : logits) {
        num_ties += static_cast<double>(z) - log_sum_exp == threshold.above ? 1 : 0;
        for (const int32_t token : {0, 39, 40, 41, kLastToken}) {
          ASSERT_EQ(cut.keeps(z, token), keeps(threshold, z, token, log_sum_exp))
              << "row " << row << " logit " << z << " token " << token << " lse " << log_sum_exp;
        }
      }
    }
  }
  EXPECT_GT(num_ties, 1000);
}

KeptTokens mixed_rows() {
  KeptTokens kept;
  kept.append_ids(std::vector<uint32_t>{0, 7, 151935});
  kept.append_threshold({-3.25, 12});
  kept.append_threshold({});
  kept.append_ids(std::vector<uint32_t>{4294967295u});
  kept.append_threshold({std::numeric_limits<double>::lowest(), -1});
  return kept;
}

std::vector<uint32_t> ids_of(const KeptTokensView& view, int64_t row) {
  const std::span<const uint32_t> ids = view.row_ids(row);
  return {ids.begin(), ids.end()};
}

TEST(KeptTokensTest, RowsComeBackAsAppended) {
  const KeptTokens kept = mixed_rows();
  EXPECT_EQ(kept.num_rows(), 5);
  EXPECT_EQ(kept.num_ids(), 4);
  EXPECT_TRUE(kept.has_thresholds());
  const KeptTokensView view = kept.view();
  EXPECT_EQ(view.num_rows, 5);
  EXPECT_EQ(ids_of(view, 0), (std::vector<uint32_t>{0, 7, 151935}));
  EXPECT_EQ(ids_of(view, 1), std::vector<uint32_t>{});
  EXPECT_EQ(view.threshold(1), (KeptThreshold{-3.25, 12}));
  EXPECT_EQ(view.threshold(2), KeptThreshold{});
  EXPECT_EQ(ids_of(view, 3), std::vector<uint32_t>{4294967295u});
  EXPECT_EQ(view.threshold(4), (KeptThreshold{std::numeric_limits<double>::lowest(), -1}));
  // Thresholds are kept only where a row has one.
  KeptTokens listed;
  listed.append_ids(std::vector<uint32_t>{3});
  EXPECT_FALSE(listed.has_thresholds());
  EXPECT_EQ(listed.view().thresholds, nullptr);
  EXPECT_EQ(listed.view().threshold(0), KeptThreshold{});
  EXPECT_THROW(listed.append_ids({}), InternalError);
}

TEST(KeptTokensTest, NoRowsAreAnAbsentView) {
  const KeptTokens none;
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.view().is_absent());
  EXPECT_TRUE(none.view().rows(0, 0).is_absent());
  EXPECT_TRUE(KeptTokensView{}.is_absent());
  KeptTokens cleared = mixed_rows();
  cleared.clear();
  EXPECT_EQ(cleared, none);
}

TEST(KeptTokensTest, RowsOfAViewAreThoseRows) {
  const KeptTokens kept = mixed_rows();
  for (int64_t begin = 0; begin <= 5; ++begin) {
    for (int64_t count = 0; begin + count <= 5; ++count) {
      const KeptTokensView part = kept.view().rows(begin, count);
      EXPECT_EQ(part.num_rows, count);
      KeptTokens again;
      again.append(part);
      EXPECT_EQ(again.num_rows(), count);
      for (int64_t row = 0; row < count; ++row) {
        EXPECT_TRUE(same_set(part, row, kept.view(), begin + row));
        EXPECT_TRUE(same_set(again.view(), row, kept.view(), begin + row));
        EXPECT_EQ(ids_of(part, row), ids_of(kept.view(), begin + row));
      }
    }
  }
  KeptTokens twice = kept;
  twice.append(kept.view());
  EXPECT_EQ(twice.num_rows(), 10);
  for (int64_t row = 0; row < 10; ++row) {
    EXPECT_TRUE(same_set(twice.view(), row, kept.view(), row % 5));
  }
}

TEST(KeptTokensTest, SameTokensComparesIdsAndThresholds) {
  const KeptTokens kept = mixed_rows();
  KeptTokens other;
  other.append_ids(std::vector<uint32_t>{0, 7, 151934});  // another id
  other.append_threshold({-3.25, 13});                    // another tie
  other.append_threshold({0.0, kLastToken});              // another border
  other.append_threshold({});                             // stored in another way
  other.append_ids(std::vector<uint32_t>{1});
  for (int64_t row = 0; row < 5; ++row) {
    EXPECT_TRUE(same_tokens(kept.view(), kept.view(), row));
    EXPECT_FALSE(same_tokens(kept.view(), other.view(), row)) << row;
    EXPECT_FALSE(same_tokens(other.view(), kept.view(), row)) << row;
  }
  // Ids alone count where there are some, whether or not other rows have thresholds.
  KeptTokens listed;
  listed.append_ids(std::vector<uint32_t>{0, 7, 151935});
  EXPECT_TRUE(same_tokens(listed.view(), kept.view().rows(0, 1), 0));
}

TEST(KeptTokensTest, PackedRowsComeBack) {
  KeptTokens listed;
  listed.append_ids(std::vector<uint32_t>{3, 9});
  listed.append_ids(std::vector<uint32_t>{1});
  KeptTokens thresholds;
  thresholds.append_threshold({1.5, 3});
  for (const KeptTokens& kept : {mixed_rows(), listed, thresholds, KeptTokens()}) {
    const int64_t size =
        KeptTokens::packed_bytes(kept.num_rows(), kept.num_ids(), kept.has_thresholds());
    // Offsets and ids of 4 bytes, thresholds of 12.
    EXPECT_EQ(size, 4 * kept.num_rows() + 4 * kept.num_ids() +
                        (kept.has_thresholds() ? 12 * kept.num_rows() : 0));
    std::vector<std::byte> bytes(static_cast<size_t>(size), std::byte{0xA5});
    kept.pack(bytes);
    const KeptTokens again =
        KeptTokens::unpack(bytes, kept.num_rows(), kept.num_ids(), kept.has_thresholds());
    EXPECT_EQ(again, kept);
    bytes.emplace_back();
    EXPECT_THROW(kept.pack(bytes), InternalError);
    EXPECT_THROW(KeptTokens::unpack(bytes, kept.num_rows(), kept.num_ids(), kept.has_thresholds()),
                 InternalError);
  }
}

// Bytes of another sequence's sizes are refused, not read past their ends.
TEST(KeptTokensTest, OffsetsThatDoNotFitAreRefused) {
  KeptTokens listed;
  listed.append_ids(std::vector<uint32_t>{3, 9});
  listed.append_ids(std::vector<uint32_t>{1});
  std::vector<std::byte> bytes(static_cast<size_t>(KeptTokens::packed_bytes(2, 3, false)));
  listed.pack(bytes);
  EXPECT_NO_THROW(KeptTokens::unpack(bytes, 2, 3, false));
  EXPECT_THROW(KeptTokens::unpack(bytes, 3, 2, false), InternalError);
  EXPECT_THROW(KeptTokens::unpack(bytes, 1, 4, false), InternalError);
  bytes[3] = std::byte{0xFF};  // the first offset
  EXPECT_THROW(KeptTokens::unpack(bytes, 2, 3, false), InternalError);
}

class KeptSetsTest : public KeptSetTest {
 protected:
  // Relative noise, as another order of sums leaves it.
  Tensor with_noise(const Tensor& logits, double relative) {
    Values values = values_of(logits);
    const Values noise = values_of(random(DType::kFloat32, logits.shape()));
    for (size_t i = 0; i < values.size(); ++i) values[i] *= 1.0 + relative * noise[i];
    return from(DType::kFloat32, logits.shape(), values);
  }
};

const SamplingFilter kFilters[] = {{1.0f, 0, 0.9},      {1.0f, 4, 1.0},    {0.7f, 50, 0.9},
                                   {1.0f, 0, 0.9, 0},   {1.0f, 4, 1.0, 0}, {0.7f, 50, 0.9, 0},
                                   {1.3f, 0, 0.999, 0}, {1.0f, 1, 1.0, 0}};

// What sample_tokens gives is what token_logprobs makes of the stored set, bit for bit.
TEST_F(KeptSetsTest, TheSampledLogprobIsThatOfTheStoredSet) {
  for (const int64_t size : {1, 7, 1000, 1024, 1025, 3001}) {
    const Tensor logits = random(DType::kFloat32, {12, size}, 3.0);
    for (const SamplingFilter& filter : kFilters) {
      std::vector<double> uniforms;
      for (uint64_t t = 0; t < 12; ++t) uniforms.push_back(uniform_at(1, 2, 3, t));
      std::vector<SampledToken> sampled(12);
      KeptTokens kept;
      sample_tokens(sampled.data(), &kept, logits, one_draw_a_row(uniforms), filter, ctx());
      ASSERT_EQ(kept, filtered(logits, filter));
      ASSERT_EQ(kept.num_rows(), 12);
      std::vector<int32_t> tokens;
      for (const SampledToken& token : sampled) tokens.push_back(token.token);
      const TokenLogprobs out{make(DType::kFloat32, {12}), make(DType::kFloat32, {12})};
      token_logprobs(out, logits, ints({12}, tokens), kept.view(), filter.inv_temperature(), ctx());
      const auto sets = members(kept.view(), logits, filter.inv_temperature());
      for (size_t t = 0; t < 12; ++t) {
        ASSERT_EQ(std::bit_cast<uint32_t>(out.processed.data<float>()[t]),
                  std::bit_cast<uint32_t>(sampled[t].logprob))
            << "vocabulary " << size << " row " << t;
        ASSERT_TRUE(std::binary_search(sets[t].begin(), sets[t].end(), tokens[t]));
      }
    }
  }
}

// Both ways of storing give the same bits: the same set, added in the same order.
TEST_F(KeptSetsTest, BothWaysOfStoringGiveTheSameBits) {
  for (const int64_t size : {7, 1000, 1025, 5003}) {
    // The last rows have ties at every border.
    Values values = values_of(random(DType::kFloat32, {6, size}, 3.0));
    for (size_t i = values.size() / 2; i < values.size(); ++i) values[i] = std::round(values[i]);
    const Tensor logits = from(DType::kFloat32, {6, size}, values);
    const Tensor targets = ints({6}, {0, 1, 2, 3, 4, 5});
    const Tensor gradient = from(DType::kFloat32, {6}, {1.0, -0.5, 2.0, 0.3, 0.0, 1.0});
    for (SamplingFilter filter : {SamplingFilter{1.0f, 0, 0.9}, {0.7f, 50, 0.9}, {1.0f, 4, 1.0}}) {
      std::vector<Tensor> results;
      for (const int32_t max_kept_ids : {0, 4096}) {
        filter.max_kept_ids = max_kept_ids;
        const KeptTokens kept = filtered(logits, filter);
        ASSERT_EQ(kept.num_ids() > 0, max_kept_ids > 0);
        const TokenLogprobs out{make(DType::kFloat32, {6}), make(DType::kFloat32, {6})};
        token_logprobs(out, logits, targets, kept.view(), filter.inv_temperature(), ctx());
        const Tensor dlogits = make(DType::kFloat32, logits.shape());
        token_logprobs_backward(dlogits, logits, {gradient, gradient}, targets, kept.view(),
                                filter.inv_temperature(), ctx());
        results.insert(results.end(), {out.processed, dlogits});
      }
      expect_same_bits(results[2], results[0], "processed");
      expect_same_bits(results[3], results[1], "dlogits");
    }
  }
}

// N1: noise of the last digits moves no token across a stored border. A threshold equal to the last
// kept logit would lose that token whenever the noise lowers it.
TEST_F(KeptSetsTest, N1_NoiseOfTheLastDigitsMovesNoToken) {
  constexpr int64_t kRows = 200;
  const Tensor logits = random(DType::kFloat32, {kRows, 1025}, 3.0);
  const Tensor noisy = with_noise(logits, 1e-7);
  for (const SamplingFilter& filter : kFilters) {
    const float inverse = filter.inv_temperature();
    const KeptTokens kept = filtered(logits, filter);
    const auto drawn = members(kept.view(), logits, inverse);
    const auto trained = members(kept.view(), noisy, inverse);
    const std::vector<double> log_sums = log_sum_exps(logits, inverse);
    const std::vector<double> noisy_log_sums = log_sum_exps(noisy, inverse);
    int64_t num_differing = 0;
    int64_t num_lost_at_the_last_kept = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      const auto row = static_cast<size_t>(t);
      num_differing += trained[row] != drawn[row] ? 1 : 0;
      const auto z = [&](const Tensor& of, int32_t v) {
        return of.data<float>()[t * 1025 + v] * inverse;
      };
      const int32_t last =
          *std::min_element(drawn[row].begin(), drawn[row].end(),
                            [&](int32_t a, int32_t b) { return z(logits, a) < z(logits, b); });
      const KeptThreshold at_the_last_kept{static_cast<double>(z(logits, last)) - log_sums[row],
                                           last};
      num_lost_at_the_last_kept +=
          keeps(at_the_last_kept, z(noisy, last), last, noisy_log_sums[row]) ? 0 : 1;
    }
    // Gaps of up to 1e-7 exist between 1025 logits of order 3, but not next to a border here.
    EXPECT_EQ(num_differing, 0) << "top_k " << filter.top_k << " top_p " << filter.top_p;
    EXPECT_GT(num_lost_at_the_last_kept, kRows / 4);
  }
}

}  // namespace
}  // namespace grpo::ops
