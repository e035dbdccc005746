// The transformer on one rank: one forward for scoring, training and cached rows, whatever the
// chunks and packing.
#include "model/transformer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/core/host_transfer.h"
#include "rl/loop/sequence_scorer.h"
#include "tests/policy_fixture.h"

namespace grpo::model {
namespace {

using rl::RolloutSequence;
using testing::make_rollout;
using testing::RankContext;
using testing::TestModel;

// Remembers the log-probabilities; gradients are those of their weighted sum.
class RecordingLoss : public TokenLoss {
 public:
  explicit RecordingLoss(bool token_local) : token_local_(token_local) {}

  bool is_token_local() const override { return token_local_; }
  void evaluate(int64_t begin, int64_t end, const LogprobValues& logprobs,
                const LogprobGradientValues& gradients) override {
    EXPECT_EQ(begin, static_cast<int64_t>(logprobs_.size()));
    EXPECT_EQ(logprobs.processed.size(), static_cast<size_t>(end - begin));
    ++num_calls_;
    for (size_t i = 0; i < logprobs.processed.size(); ++i) {
      gradients.dprocessed[i] = static_cast<float>(logprobs_.size() % 3) - 0.7f;
      gradients.dunfiltered[i] = 0.0f;
      logprobs_.push_back(logprobs.processed[i]);
    }
  }

  const std::vector<float>& logprobs() const { return logprobs_; }
  int num_calls() const { return num_calls_; }

 private:
  bool token_local_;
  std::vector<float> logprobs_;
  int num_calls_ = 0;
};

class ModelUnderTest {
 public:
  explicit ModelUnderTest(const ModelConfig& config, DType dtype = DType::kFloat32,
                          int64_t head_chunk_rows = 16)
      : model(poisoned(), config, testing::solo_groups(), dtype, head_chunk_rows) {
    testing::fill_lively(model.store, 7);
  }

  std::vector<float> score(const std::vector<const RolloutSequence*>& sequences) {
    const PackedBatch batch = rl::pack_rollout(sequences, true, rank.allocator);
    testing::TestScores scores = testing::score(model.transformer, batch, 1.0f, nullptr, rank.ctx);
    EXPECT_EQ(scores.processed, scores.unfiltered);  // nothing is cut
    return std::move(scores.processed);
  }

  RecordingLoss train(const std::vector<const RolloutSequence*>& sequences, bool token_local) {
    const PackedBatch batch = rl::pack_rollout(sequences, true, rank.allocator);
    RecordingLoss loss(token_local);
    model.store.zero_gradients();
    model.transformer.train(batch, 1.0f, loss, nullptr, rank.ctx);
    return loss;
  }

  testing::NamedValues gradients() {
    return testing::gather_logical(model.store,
                                   [&](ParameterId id) { return model.store.gradient_shard(id); });
  }

  RankContext rank;
  TestModel model;

 private:
  RankContext& poisoned() {
    rank.allocator.set_poison_scratch(true);
    return rank;
  }
};

std::vector<const RolloutSequence*> pointers(const std::vector<RolloutSequence>& sequences) {
  std::vector<const RolloutSequence*> result;
  for (const RolloutSequence& sequence : sequences) result.push_back(&sequence);
  return result;
}

struct Variant {
  std::string name;
  ModelConfig config;
  DType dtype;
};

class TransformerVariants : public ::testing::TestWithParam<Variant> {
 protected:
  TransformerVariants()
      : sequences(make_rollout({{1, 0}, {1, 1}, {5, 7}, {3, 20}, {9, 1}, {4, 0}},
                               GetParam().config.vocab_size, 2)) {}

  std::vector<RolloutSequence> sequences;
};

std::vector<Variant> variants() {
  return {{"EVEN_tied_float32", testing::even_config(true), DType::kFloat32},
          {"ODD_tied_float32", testing::odd_config(true), DType::kFloat32},
          {"ODD_untied_float32", testing::odd_config(false), DType::kFloat32},
          {"ODD_tied_bfloat16", testing::odd_config(true), DType::kBfloat16}};
}

INSTANTIATE_TEST_SUITE_P(Models, TransformerVariants, ::testing::ValuesIn(variants()),
                         [](const auto& test) { return test.param.name; });

TEST_P(TransformerVariants, TrainingAndScoringGiveTheSameBits) {
  ModelUnderTest tested(GetParam().config, GetParam().dtype);
  const std::vector<float> scored = tested.score(pointers(sequences));
  ASSERT_EQ(scored.size(), 29u);
  for (const bool token_local : {true, false}) {
    const RecordingLoss loss = tested.train(pointers(sequences), token_local);
    EXPECT_EQ(loss.logprobs(), scored);
    EXPECT_EQ(loss.num_calls(), token_local ? 2 : 1);  // 29 rows in chunks of 16
  }
}

TEST_P(TransformerVariants, OneAndTwoPassesGiveTheSameGradients) {
  ModelUnderTest tested(GetParam().config, GetParam().dtype);
  tested.train(pointers(sequences), true);
  const testing::NamedValues single = tested.gradients();
  tested.train(pointers(sequences), false);
  EXPECT_EQ(tested.gradients(), single);
  for (const auto& [name, values] : single) EXPECT_GT(testing::norm(values), 0.0) << name;
}

TEST_P(TransformerVariants, ChunksOfTheHeadDoNotShow) {
  ModelUnderTest reference(GetParam().config, GetParam().dtype);
  const std::vector<float> expected = reference.score(pointers(sequences));
  reference.train(pointers(sequences), true);
  const testing::NamedValues expected_gradients = reference.gradients();
  for (const int64_t chunk : {1, 7, 29, 1000}) {
    ModelUnderTest tested(GetParam().config, GetParam().dtype, chunk);
    EXPECT_EQ(tested.score(pointers(sequences)), expected) << "chunk " << chunk;
    EXPECT_EQ(tested.train(pointers(sequences), true).logprobs(), expected);
    const testing::NamedValues gradients = tested.gradients();
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_LE(testing::difference_norm(gradients[i].second, expected_gradients[i].second),
                1e-5 * testing::norm(expected_gradients[i].second))
          << gradients[i].first << ", chunk " << chunk;
    }
  }
}

TEST_P(TransformerVariants, PackingDoesNotShow) {
  ModelUnderTest tested(GetParam().config, GetParam().dtype);
  const std::vector<float> packed = tested.score(pointers(sequences));
  std::vector<float> one_by_one;
  for (const RolloutSequence& sequence : sequences) {
    const std::vector<float> alone = tested.score({&sequence});
    one_by_one.insert(one_by_one.end(), alone.begin(), alone.end());
  }
  EXPECT_EQ(one_by_one, packed);
}

TEST(Transformer, APassThatPredictsNothingChangesNoGradient) {
  ModelUnderTest tested(testing::odd_config());
  const auto nothing = make_rollout({{4, 0}}, 131, 2);
  for (const bool token_local : {true, false}) {
    EXPECT_TRUE(tested.train(pointers(nothing), token_local).logprobs().empty());
    for (const auto& [name, values] : tested.gradients()) {
      EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f)) << name;
    }
  }
}

TEST(Transformer, TemperatureIsInsideTheLogSoftmax) {
  ModelUnderTest tested(testing::odd_config());
  const auto sequences = make_rollout({{3, 9}}, 131, 2);
  const PackedBatch batch = rl::pack_rollout(pointers(sequences), true, tested.rank.allocator);
  const auto score = [&](float inv_temperature) {
    return testing::score(tested.model.transformer, batch, inv_temperature, nullptr,
                          tested.rank.ctx)
        .processed;
  };
  for (const float logprob : score(1e-6f)) EXPECT_NEAR(logprob, -std::log(131.0), 1e-4);
  EXPECT_NE(score(1.0f), score(2.0f));
}

TEST(Transformer, ASequenceBeyondThePositionsIsRefused) {
  ModelUnderTest tested(testing::odd_config());  // 256 positions
  const auto sequences = make_rollout({{200, 57}, {200, 56}}, 131, 2);
  EXPECT_THROW(tested.score({&sequences[0]}), InternalError);
  EXPECT_THROW(tested.train({&sequences[0]}, true), InternalError);
  EXPECT_EQ(tested.score({&sequences[1]}).size(), 56u);
}

// The derivative of the sum of log-probabilities along a random direction of the weights.
TEST(Transformer, GradientIsTheSlopeOfTheLoss) {
  for (const bool tied : {true, false}) {
    ModelUnderTest tested(testing::odd_config(tied));
    const auto sequences = make_rollout({{1, 1}, {5, 7}, {3, 12}}, 131, 2);
    const auto weighted_sum = [&] {
      double sum = 0;
      const std::vector<float> logprobs = tested.score(pointers(sequences));
      for (size_t i = 0; i < logprobs.size(); ++i) {
        sum += logprobs[i] * (static_cast<double>(i % 3) - static_cast<double>(0.7f));
      }
      return sum;
    };
    tested.train(pointers(sequences), true);
    for (size_t i = 0; i < tested.model.store.specs().size(); ++i) {
      const Tensor weights = tested.model.store.shard(static_cast<ParameterId>(i));
      const auto gradient =
          to_host<float>(tested.model.store.gradient_shard(static_cast<ParameterId>(i)));
      // Along the gradient itself the slope is its norm.
      double squares = 0;
      for (const float value : gradient) squares += std::pow(static_cast<double>(value), 2);
      const double size = std::sqrt(squares);
      const auto start = to_host<float>(weights);
      const auto moved = [&](double step) {
        std::vector<float> values(start.size());
        for (size_t e = 0; e < values.size(); ++e) {
          values[e] = static_cast<float>(start[e] + step * gradient[e] / size);
        }
        copy_from_host<float>(weights, values);
        return weighted_sum();
      };
      const double step = 1e-2;
      const double slope = (moved(step) - moved(-step)) / (2 * step);
      copy_from_host<float>(weights, start);
      EXPECT_NEAR(slope, size, 0.02 * size + 1e-3) << tested.model.store.specs()[i].name;
    }
  }
}

}  // namespace
}  // namespace grpo::model
