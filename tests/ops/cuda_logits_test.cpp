// T rows, V vocabulary. Both devices add in one order (softmax_order.h), so every comparison is of
// bits.
#include <limits>

#include "model/ops/log_softmax.h"
#include "model/ops/sampler.h"
#include "tests/ops/logits_patterns.h"
#include "tests/ops/token_draws.h"

namespace grpo::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> uniforms_of(int64_t rows) {
  std::vector<double> uniforms{0.0, 1.0 - 0x1.0p-53};
  for (uint64_t t = 0; t < static_cast<uint64_t>(rows); ++t)
    uniforms.push_back(uniform_at(1, 2, 3, t));
  uniforms.resize(static_cast<size_t>(rows));
  return uniforms;
}

void expect_same(const std::vector<SampledToken>& actual, const std::vector<SampledToken>& wanted,
                 const char* what) {
  ASSERT_EQ(actual.size(), wanted.size()) << what;
  for (size_t t = 0; t < wanted.size(); ++t) {
    ASSERT_EQ(actual[t].token, wanted[t].token) << what << " of row " << t;
    ASSERT_EQ(actual[t].logprob, wanted[t].logprob) << what << " of row " << t;
  }
}

class CudaLogitsTest
    : public CudaTest<::testing::TestWithParam<std::pair<int64_t, int64_t>>, LogitsTestTensors> {
 protected:
  int64_t rows() const { return GetParam().first; }
  int64_t vocabulary() const { return GetParam().second; }

  using LogitsTestTensors::logits_of;
  Tensor logits_of(Pattern pattern) { return logits_of(pattern, rows(), vocabulary()); }
  // Rows by id and by a threshold; the second keeps everything, the third nothing but its target,
  // unless that may have no weight.
  KeptTokens stored_of(const Tensor& logits, bool targets_have_weight = true) {
    KeptTokens stored;
    for (int64_t t = 0; t < logits.size(0); ++t) {
      if (t == 1) {
        stored.append_threshold({});
      } else if (t == 2 && targets_have_weight) {
        stored.append_threshold({1e30, 0});
      } else {
        const SamplingFilter filter{0.8f, 40, 0.9, t % 2 == 0 ? 256 : 0};
        stored.append(filtered(logits.rows(t, 1), filter, ctx()).view());
      }
    }
    return stored;
  }

  std::vector<SampledToken> sample(const Tensor& logits, const std::vector<double>& uniforms,
                                   const SamplingFilter& filter, OpContext& on) {
    std::vector<SampledToken> out(uniforms.size());
    kept.clear();
    sample_tokens(out.data(), &kept, logits, one_draw_a_row(uniforms), filter, on);
    return out;
  }

  std::vector<SampledToken> greedy(const Tensor& logits, OpContext& on) {
    std::vector<SampledToken> out(static_cast<size_t>(logits.size(0)));
    argmax_tokens(out.data(), logits, on);
    return out;
  }

  KeptTokens kept;  // of the last sample()
};

// One token; broken and whole groups of four and blocks of 1024; more rows than a block's warps; a
// vocabulary of real size.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaLogitsTest,
    ::testing::Values(std::pair<int64_t, int64_t>{0, 5}, std::pair<int64_t, int64_t>{3, 1},
                      std::pair<int64_t, int64_t>{9, 3}, std::pair<int64_t, int64_t>{5, 1024},
                      std::pair<int64_t, int64_t>{6, 1031}, std::pair<int64_t, int64_t>{4, 5004},
                      std::pair<int64_t, int64_t>{2, 40001}),
    [](const auto& test) {
      return std::to_string(test.param.first) + "_" + std::to_string(test.param.second);
    });

TEST_P(CudaLogitsTest, Logprobs) {
  for (const Pattern pattern : kPatterns) {
    const Tensor logits = logits_of(pattern);
    const Tensor targets = targets_of(rows(), vocabulary());
    const KeptTokens sets = stored_of(logits);
    for (const bool has_sets : {false, true}) {
      const KeptTokensView stored = has_sets ? sets.view() : KeptTokensView{};
      const Shape shape{rows()};
      const TokenLogprobs wanted{make(DType::kFloat32, shape), make(DType::kFloat32, shape)};
      token_logprobs(wanted, logits, targets, stored, 1.25f, ctx());
      expect_bits({wanted.processed, wanted.unfiltered}, [&](int64_t shift) {
        const TokenLogprobs out{cuda_make(DType::kFloat32, shape, shift),
                                cuda_make(DType::kFloat32, shape, shift)};
        token_logprobs(out, to_cuda(logits, shift), to_cuda(targets, shift), stored, 1.25f, cuda());
        return Results{out.processed, out.unfiltered};
      });
    }
  }
}

TEST_P(CudaLogitsTest, LogprobsBackward) {
  const Tensor targets = targets_of(rows(), vocabulary());
  const Tensor dprocessed = random(DType::kFloat32, {rows()});
  const Tensor dunfiltered = random(DType::kFloat32, {rows()});
  // Rows with one gradient and with none.
  for (int64_t t = 0; t < rows(); ++t) {
    if (t % 4 == 1) dunfiltered.data<float>()[t] = 0.0f;
    if (t % 4 == 2) dprocessed.data<float>()[t] = 0.0f;
    if (t % 4 == 3) dprocessed.data<float>()[t] = dunfiltered.data<float>()[t] = 0.0f;
  }
  for (const Pattern pattern : {Pattern::kNormal, Pattern::kTies, Pattern::kExcluded}) {
    const Tensor logits = logits_of(pattern);
    const KeptTokens sets = stored_of(logits, pattern != Pattern::kExcluded);
    for (const bool both : {true, false}) {
      const KeptTokensView stored = both ? sets.view() : KeptTokensView{};
      const Tensor wanted = copy(logits);
      token_logprobs_backward(wanted, wanted, {dprocessed, both ? dunfiltered : Tensor()}, targets,
                              stored, 1.25f, ctx());
      expect_bits({wanted}, [&](int64_t shift) {
        const Tensor dlogits = to_cuda(logits, shift);
        token_logprobs_backward(dlogits, dlogits,
                                {to_cuda(dprocessed), both ? to_cuda(dunfiltered) : Tensor()},
                                to_cuda(targets), stored, 1.25f, cuda());
        return Results{dlogits};
      });
    }
  }
}

// As training calls it: into other memory, in bfloat16, with the sums of the forward.
TEST_P(CudaLogitsTest, LogprobsBackwardFromSums) {
  const Tensor logits = logits_of(Pattern::kNormal);
  const Tensor targets = targets_of(rows(), vocabulary());
  const Tensor gradient = random(DType::kFloat32, {rows()});
  if (rows() > 1) gradient.data<float>()[1] = 0.0f;
  const KeptTokens sets = stored_of(logits);
  for (const bool has_sets : {false, true}) {
    const KeptTokensView stored = has_sets ? sets.view() : KeptTokensView{};
    const Shape shape{rows()};
    for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
      const Tensor wanted = make(dtype, logits.shape());
      token_logprobs_backward(wanted, logits, {gradient, gradient}, targets, stored, 1.25f, ctx());
      expect_bits({wanted}, [&](int64_t shift) {
        const Tensor there = to_cuda(logits, shift);
        const Tensor ids = to_cuda(targets);
        const TokenLogprobs out{cuda_make(DType::kFloat32, shape),
                                cuda_make(DType::kFloat32, shape),
                                cuda_make(DType::kUint8, {rows(), kRowSumsBytes})};
        token_logprobs(out, there, ids, stored, 1.25f, cuda());
        const Tensor dlogits = cuda_make(dtype, logits.shape(), shift);
        token_logprobs_backward(dlogits, there, {to_cuda(gradient), to_cuda(gradient), out.sums},
                                ids, stored, 1.25f, cuda());
        return Results{dlogits};
      });
    }
  }
}

// The same token as on the CPU, and what training computes for it (numerics contract 4).
TEST_P(CudaLogitsTest, Samples) {
  const std::vector<double> uniforms = uniforms_of(rows());
  for (const Pattern pattern : kPatterns) {
    const Tensor logits = logits_of(pattern);
    const Tensor there = to_cuda(logits);
    for (const SamplingFilter& filter : kFilters) {
      SCOPED_TRACE(fmt::format("pattern {} top_k {} top_p {}", static_cast<int>(pattern),
                               filter.top_k, filter.top_p));
      const std::vector<SampledToken> sampled = sample(there, uniforms, filter, cuda());
      const KeptTokens stored = kept;
      expect_same(sampled, sample(logits, uniforms, filter, ctx()), "CPU");
      EXPECT_EQ(stored, kept);
      std::vector<int32_t> tokens;
      Values logprobs;
      for (const SampledToken& token : sampled) {
        tokens.push_back(token.token);
        logprobs.push_back(token.logprob);
      }
      EXPECT_EQ(filtered(there, filter, cuda()), stored);
      const Shape shape{rows()};
      const TokenLogprobs out{cuda_make(DType::kFloat32, shape), cuda_make(DType::kFloat32, shape)};
      token_logprobs(out, there, to_cuda(ints(shape, tokens)), stored.view(),
                     filter.inv_temperature(), cuda());
      expect_same_bits(to_host(out.processed), from(DType::kFloat32, shape, logprobs), "training");
    }
  }
}

TEST_P(CudaLogitsTest, ARowGivesSeveralDraws) {
  const Tensor logits = logits_of(Pattern::kNormal);
  std::vector<TokenDraw> draws;
  for (int32_t row = 0; row < rows(); ++row) {
    for (int32_t i = 0; i <= row % 5; ++i) {
      draws.push_back({.uniform = uniform_at(1, 2, 4, draws.size()), .row = row});
    }
  }
  for (const SamplingFilter& filter : kFilters) {
    std::vector<SampledToken> wanted(draws.size());
    KeptTokens wanted_kept;
    sample_tokens(wanted.data(), &wanted_kept, logits, draws, filter, ctx());
    std::vector<SampledToken> out(draws.size());
    KeptTokens out_kept;
    sample_tokens(out.data(), &out_kept, to_cuda(logits), draws, filter, cuda());
    expect_same(out, wanted, "CPU");
    EXPECT_EQ(out_kept, wanted_kept);
    // The same draws where nobody asks for the sets.
    sample_tokens(out.data(), nullptr, to_cuda(logits), draws, filter, cuda());
    expect_same(out, wanted, "without sets");
  }
}

TEST_P(CudaLogitsTest, Greedy) {
  for (const Pattern pattern : kPatterns) {
    const Tensor logits = logits_of(pattern);
    expect_same(greedy(to_cuda(logits), cuda()), greedy(logits, ctx()), "CPU");
    expect_same(greedy(to_cuda(logits, 1), cuda()), greedy(logits, ctx()), "unaligned");
  }
}

class CudaLogitsRowsTest : public CudaLogitsTest {};

// Rows in the batch, and size of a row.
INSTANTIATE_TEST_SUITE_P(Batches, CudaLogitsRowsTest,
                         ::testing::Values(std::pair<int64_t, int64_t>{1, 1031},
                                           std::pair<int64_t, int64_t>{7, 1031},
                                           std::pair<int64_t, int64_t>{64, 1032},
                                           std::pair<int64_t, int64_t>{513, 1031}),
                         [](const auto& test) {
                           return std::to_string(test.param.first) + "_" +
                                  std::to_string(test.param.second);
                         });

// Three rows repeated over the batch: each gives the bits it gives on its own.
TEST_P(CudaLogitsRowsTest, RowsDoNotDependOnTheirCompany) {
  constexpr int64_t kDistinct = 3;
  const SamplingFilter filter{0.9f, 40, 0.95};
  const Tensor distinct = logits_of(Pattern::kNormal, kDistinct, vocabulary());
  const std::vector<double> draws = uniforms_of(kDistinct + 2);
  const Tensor logits = make(DType::kFloat32, {rows(), vocabulary()});
  std::vector<double> uniforms;
  std::vector<int32_t> targets;
  for (int64_t t = 0; t < rows(); ++t) {
    copy_tensor(logits.rows(t, 1), distinct.rows(t % kDistinct, 1));
    uniforms.push_back(draws[static_cast<size_t>(2 + t % kDistinct)]);
    targets.push_back(static_cast<int32_t>(100 * (t % kDistinct)));
  }
  struct Outcome {
    std::vector<SampledToken> sampled;
    Tensor processed;
    Tensor unfiltered;
    Tensor dlogits;
    KeptTokens kept;
  };
  const auto run = [&](int64_t first, int64_t count) {
    const auto at = static_cast<size_t>(first);
    const auto end = static_cast<size_t>(first + count);
    const Tensor part = to_cuda(logits.rows(first, count));
    const Tensor ids = to_cuda(ints(
        {count}, std::vector<int32_t>(targets.begin() + first, targets.begin() + first + count)));
    Outcome out{
        sample(part, std::vector<double>(&uniforms[at], uniforms.data() + end), filter, cuda()),
        cuda_make(DType::kFloat32, {count}), cuda_make(DType::kFloat32, {count}), part,
        KeptTokens()};
    out.kept = kept;
    token_logprobs({out.processed, out.unfiltered}, part, ids, out.kept.view(),
                   filter.inv_temperature(), cuda());
    const Tensor gradient = from(DType::kFloat32, {count}, Values(static_cast<size_t>(count), 0.3));
    token_logprobs_backward(part, part, {to_cuda(gradient), to_cuda(gradient)}, ids,
                            out.kept.view(), filter.inv_temperature(), cuda());
    for (Tensor* tensor : {&out.processed, &out.unfiltered, &out.dlogits})
      *tensor = to_host(*tensor);
    return out;
  };
  const Outcome together = run(0, rows());
  std::vector<Outcome> alone;
  for (int64_t t = 0; t < std::min(kDistinct, rows()); ++t) alone.push_back(run(t, 1));
  for (int64_t t = 0; t < rows(); ++t) {
    const Outcome& wanted = alone[static_cast<size_t>(t % kDistinct)];
    expect_same({together.sampled[static_cast<size_t>(t)]}, wanted.sampled, "row alone");
    EXPECT_TRUE(same_set(together.kept.view(), t, wanted.kept.view(), 0)) << "row " << t;
    expect_same_bits(together.processed.rows(t, 1), wanted.processed, "processed of a row alone");
    expect_same_bits(together.unfiltered.rows(t, 1), wanted.unfiltered,
                     "unfiltered of a row alone");
    expect_same_bits(together.dlogits.rows(t, 1), wanted.dlogits, "gradient of a row alone");
  }
}

class CudaLogitsErrorTest : public CudaTest<::testing::Test> {
 protected:
  // The call fails on both devices with the same words.
  template <typename ErrorType>
  void expect_error(const Tensor& logits,
                    const std::function<void(const Tensor&, OpContext&)>& call, const char* words) {
    std::vector<std::string> messages;
    for (const bool on_cuda : {false, true}) {
      try {
        call(on_cuda ? to_cuda(logits) : copy(logits), on_cuda ? cuda() : ctx());
        ADD_FAILURE() << "no error: " << words;
      } catch (const ErrorType& error) {
        messages.emplace_back(error.what());
      }
    }
    ASSERT_EQ(messages.size(), 2u);
    EXPECT_NE(messages[0].find(words), std::string::npos) << messages[0];
    if constexpr (std::is_same_v<ErrorType, NonFiniteError>) {
      EXPECT_EQ(messages[1], messages[0]);
    } else {
      EXPECT_NE(messages[1].find(words), std::string::npos) << messages[1];
    }
  }

  Tensor ids_on(const std::vector<int32_t>& ids, OpContext& on) {
    const Tensor tensor = ints({static_cast<int64_t>(ids.size())}, ids);
    return on.device == kTestCuda ? to_cuda(tensor) : tensor;
  }
  Tensor floats_on(const Values& values, OpContext& on) {
    const Tensor tensor = from(DType::kFloat32, {static_cast<int64_t>(values.size())}, values);
    return on.device == kTestCuda ? to_cuda(tensor) : tensor;
  }

  void logprobs(const Tensor& logits, const std::vector<int32_t>& targets, OpContext& on) {
    const Values zeros(targets.size(), 0.0);
    token_logprobs({floats_on(zeros, on), floats_on(zeros, on)}, logits, ids_on(targets, on), {},
                   1.0f, on);
  }
};

TEST_F(CudaLogitsErrorTest, NonFiniteRowsAreNamed) {
  for (const double bad : {std::nan(""), kInfinity}) {
    for (const int64_t column : {0, 2077}) {
      const Tensor logits = random(DType::kFloat32, {4, 2078});
      for (const int64_t row : {1, 3}) {
        logits.data<float>()[row * 2078 + column] = static_cast<float>(bad);
      }
      const char* words = "logits of row 1 are not finite";
      const auto expect_named = [&](const std::function<void(const Tensor&, OpContext&)>& call) {
        expect_error<NonFiniteError>(logits, call, words);
      };
      const std::vector<double> uniforms(4, 0.5);
      KeptTokens kept;
      std::vector<SampledToken> sampled(4);
      expect_named([&](const Tensor& x, OpContext& on) {
        filter_tokens(kept, x, {1.0f, 5, 0.9}, on);
      });
      expect_named([&](const Tensor& x, OpContext& on) { filter_tokens(kept, x, {}, on); });
      expect_named([&](const Tensor& x, OpContext& on) {
        sample_tokens(sampled.data(), &kept, x, one_draw_a_row(uniforms), {1.0f, 5, 0.9}, on);
      });
      expect_named([&](const Tensor& x, OpContext& on) { argmax_tokens(sampled.data(), x, on); });
      expect_named([&](const Tensor& x, OpContext& on) { logprobs(x, {0, 0, 0, 0}, on); });
      expect_named([&](const Tensor& x, OpContext& on) {
        token_logprobs_backward(x, x, {floats_on({1, 1, 1, 1}, on), Tensor()},
                                ids_on({0, 0, 0, 0}, on), {}, 1.0f, on);
      });
    }
  }
  const Tensor none = from(DType::kFloat32, {1, 2}, {-kInfinity, -kInfinity});
  expect_error<NonFiniteError>(
      none, [&](const Tensor& x, OpContext& on) { logprobs(x, {0}, on); }, "row 0");
}

// Such a row is never read: it may hold anything.
TEST_F(CudaLogitsErrorTest, RowsWithoutGradientBecomeZero) {
  const Tensor logits = random(DType::kFloat32, {2, 50});
  poison_memory(logits.rows(0, 1).raw(), logits.rows(0, 1).size_bytes(), Device::cpu());
  const Tensor dlogits = to_cuda(logits);
  token_logprobs_backward(dlogits, dlogits, {floats_on({0.0, 1.0}, cuda()), Tensor()},
                          ids_on({3, 4}, cuda()), {}, 1.0f, cuda());
  EXPECT_EQ(values_of(to_host(dlogits).rows(0, 1)), Values(50, 0.0));
}

TEST_F(CudaLogitsErrorTest, TargetsOutsideTheVocabularyAreNamed) {
  const Tensor logits = random(DType::kFloat32, {3, 7});
  for (const int32_t target : {-1, 7}) {
    const std::string words = fmt::format("target {} of row 1 is outside [0, 7)", target);
    expect_error<InternalError>(
        logits,
        [&](const Tensor& x, OpContext& on) {
          logprobs(x, {0, target, target}, on);
        },
        words.c_str());
    expect_error<InternalError>(
        logits,
        [&](const Tensor& x, OpContext& on) {
          token_logprobs_backward(x, x, {floats_on({1, 0, 1}, on), Tensor()},
                                  ids_on({0, target, target}, on), {}, 1.0f, on);
        },
        words.c_str());
  }
}

}  // namespace
}  // namespace grpo::ops
