// The sets that the sampling filters keep, on both devices: the same ids, the same thresholds, and
// the same bits under other logits than those they were made from.
#include "model/ops/log_softmax.h"
#include "model/ops/sampler.h"
#include "tests/ops/logits_patterns.h"
#include "tests/ops/token_draws.h"

namespace grpo::ops {
namespace {

class CudaKeptTokensTest
    : public CudaTest<::testing::TestWithParam<std::pair<int64_t, int64_t>>, LogitsTestTensors> {
 protected:
  int64_t rows() const { return GetParam().first; }
  int64_t vocabulary() const { return GetParam().second; }

  Tensor logits_of(Pattern pattern) {
    return LogitsTestTensors::logits_of(pattern, rows(), vocabulary());
  }
  // As after an update: close, but with other tokens at the border.
  Tensor moved(const Tensor& logits, double scale) {
    Values values = values_of(logits);
    const Values noise = values_of(random(DType::kFloat32, logits.shape(), scale));
    for (size_t i = 0; i < values.size(); ++i) values[i] += noise[i];
    return from(DType::kFloat32, logits.shape(), values);
  }
  // A target that the row's set does not hold, where there is one; else the first.
  Tensor dropped_targets(const KeptTokens& kept, const Tensor& logits) {
    std::vector<int32_t> targets;
    for (int64_t t = 0; t < logits.size(0); ++t) {
      const std::span<const uint32_t> ids = kept.view().row_ids(t);
      const float* values = logits.data<float>() + t * logits.size(1);
      // Thresholded sets keep the largest logits.
      auto target =
          static_cast<int32_t>(std::min_element(values, values + logits.size(1)) - values);
      for (int32_t v = 0; !ids.empty() && v < logits.size(1); ++v) {
        if (!std::binary_search(ids.begin(), ids.end(), static_cast<uint32_t>(v))) target = v;
      }
      targets.push_back(target);
    }
    return ints({logits.size(0)}, targets);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaKeptTokensTest,
    ::testing::Values(std::pair<int64_t, int64_t>{0, 5}, std::pair<int64_t, int64_t>{3, 1},
                      std::pair<int64_t, int64_t>{5, 7}, std::pair<int64_t, int64_t>{4, 1000},
                      std::pair<int64_t, int64_t>{3, 1024}, std::pair<int64_t, int64_t>{6, 1025},
                      std::pair<int64_t, int64_t>{2, 151936}),
    [](const auto& test) {
      return std::to_string(test.param.first) + "_" + std::to_string(test.param.second);
    });

TEST_P(CudaKeptTokensTest, SetsAreTheCpus) {
  for (const Pattern pattern : kPatterns) {
    const Tensor logits = logits_of(pattern);
    const Tensor there[] = {to_cuda(logits), to_cuda(logits, 1)};
    for (SamplingFilter filter : kFilters) {
      for (const int32_t max_kept_ids : kMaxKeptIds) {
        SCOPED_TRACE(fmt::format("pattern {} top_k {} top_p {} max_kept_ids {}",
                                 static_cast<int>(pattern), filter.top_k, filter.top_p,
                                 max_kept_ids));
        filter.max_kept_ids = max_kept_ids;
        const KeptTokens wanted = filtered(logits, filter, ctx());
        ASSERT_EQ(wanted.num_rows(), rows());
        for (const Tensor& x : there) {
          const KeptTokens kept = filtered(x, filter, cuda());
          ASSERT_EQ(kept.num_rows(), wanted.num_rows());
          for (int64_t t = 0; t < rows(); ++t) {
            const std::span<const uint32_t> ids = kept.view().row_ids(t);
            const std::span<const uint32_t> wanted_ids = wanted.view().row_ids(t);
            ASSERT_TRUE(std::equal(ids.begin(), ids.end(), wanted_ids.begin(), wanted_ids.end()))
                << "row " << t << ": " << ids.size() << " ids, wanted " << wanted_ids.size();
            ASSERT_EQ(kept.view().threshold(t).above, wanted.view().threshold(t).above) << t;
            ASSERT_EQ(kept.view().threshold(t).last_tie, wanted.view().threshold(t).last_tie) << t;
          }
          ASSERT_EQ(kept, wanted);
        }
      }
    }
  }
}

// What a set already holds stays in front of what is appended.
TEST_P(CudaKeptTokensTest, SetsAreAppended) {
  const Tensor logits = logits_of(Pattern::kNormal);
  KeptTokens wanted = filtered(logits, {0.7f, 20, 1.0}, ctx());
  filter_tokens(wanted, logits, {1.3f, 0, 0.8, 0}, ctx());
  KeptTokens kept = filtered(to_cuda(logits), {0.7f, 20, 1.0}, cuda());
  filter_tokens(kept, to_cuda(logits), {1.3f, 0, 0.8, 0}, cuda());
  EXPECT_EQ(kept, wanted);
}

TEST_P(CudaKeptTokensTest, TheSamplersSetsAreThoseOfTheFilter) {
  const std::vector<double> uniforms(static_cast<size_t>(rows()), 0.37);
  for (const Pattern pattern : kPatterns) {
    const Tensor there = to_cuda(logits_of(pattern));
    for (SamplingFilter filter : kFilters) {
      for (const int32_t max_kept_ids : kMaxKeptIds) {
        filter.max_kept_ids = max_kept_ids;
        std::vector<SampledToken> sampled(uniforms.size());
        KeptTokens kept;
        sample_tokens(sampled.data(), &kept, there, one_draw_a_row(uniforms), filter, cuda());
        ASSERT_EQ(kept, filtered(there, filter, cuda()))
            << "pattern " << static_cast<int>(pattern) << " top_k " << filter.top_k << " top_p "
            << filter.top_p << " max_kept_ids " << max_kept_ids;
      }
    }
  }
}

// Under the logits of a later update, for targets inside and outside the sets: the same bits
// forward and backward.
TEST_P(CudaKeptTokensTest, SetsUnderOtherLogits) {
  const Tensor gradient = random(DType::kFloat32, {rows()});
  const Shape shape{rows()};
  for (const Pattern pattern : kPatterns) {
    const Tensor drawn_from = logits_of(pattern);
    for (const double scale : {0.0, 1e-6, 0.3}) {
      const Tensor logits = moved(drawn_from, scale);
      for (const int32_t max_kept_ids : kMaxKeptIds) {
        for (const SamplingFilter& filter : {SamplingFilter{0.8f, 40, 0.9, max_kept_ids},
                                             {0.8f, 3, 1.0, max_kept_ids},
                                             {0.8f, 0, 0.95, max_kept_ids}}) {
          SCOPED_TRACE(fmt::format("pattern {} scale {} top_k {} max_kept_ids {}",
                                   static_cast<int>(pattern), scale, filter.top_k, max_kept_ids));
          const KeptTokens kept = filtered(drawn_from, filter, ctx());
          const KeptTokensView stored = kept.view();
          for (const Tensor& targets :
               {targets_of(rows(), vocabulary()), dropped_targets(kept, logits)}) {
            const TokenLogprobs wanted{make(DType::kFloat32, shape), make(DType::kFloat32, shape)};
            token_logprobs(wanted, logits, targets, stored, 1.25f, ctx());
            const Tensor dlogits = make(DType::kFloat32, logits.shape());
            token_logprobs_backward(dlogits, logits, {gradient, gradient}, targets, stored, 1.25f,
                                    ctx());
            expect_bits({wanted.processed, wanted.unfiltered, dlogits}, [&](int64_t shift) {
              const Tensor there = to_cuda(logits, shift);
              const Tensor ids = to_cuda(targets);
              const TokenLogprobs out{cuda_make(DType::kFloat32, shape),
                                      cuda_make(DType::kFloat32, shape),
                                      cuda_make(DType::kUint8, {rows(), kRowSumsBytes})};
              token_logprobs(out, there, ids, stored, 1.25f, cuda());
              const Tensor dthere = cuda_make(DType::kFloat32, logits.shape(), shift);
              token_logprobs_backward(dthere, there,
                                      {to_cuda(gradient), to_cuda(gradient), out.sums}, ids, stored,
                                      1.25f, cuda());
              return Results{out.processed, out.unfiltered, dthere};
            });
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace grpo::ops
