#include "generation/sequence.h"

#include <gtest/gtest.h>

#include <set>

namespace grpo::generation {
namespace {

SamplingParams params_of(uint64_t seed, DrawSplit split) {
  return {.filter = {},
          .greedy = false,
          .max_new_tokens = 1,
          .stop_token_ids = {},
          .ignore_stop = false,
          .seed = seed,
          .split = split,
          .stores_kept_tokens = true};
}

TEST(SamplingUniform, IsAFunctionOfItsKey) {
  const SamplingParams params = params_of(42, DrawSplit::kTrain);
  const double first = sampling_uniform(params, 7, 3, 11);
  sampling_uniform(params, 8, 0, 0);
  EXPECT_EQ(sampling_uniform(params, 7, 3, 11), first);
  // What does not belong to the key changes nothing.
  SamplingParams other = params;
  other.filter.temperature = 0.5f;
  other.max_new_tokens = 99;
  EXPECT_EQ(sampling_uniform(other, 7, 3, 11), first);
}

TEST(SamplingUniform, EveryPartOfTheKeyCounts) {
  std::set<double> values;
  size_t num_keys = 0;
  for (const uint64_t seed : {1, 2}) {
    for (const DrawSplit split : {DrawSplit::kTrain, DrawSplit::kValidation}) {
      for (uint64_t draw = 0; draw < 20; ++draw) {
        for (int32_t sample = 0; sample < 8; ++sample) {
          for (int64_t position = 0; position < 30; ++position, ++num_keys) {
            const double value = sampling_uniform(params_of(seed, split), draw, sample, position);
            ASSERT_GE(value, 0.0);
            ASSERT_LT(value, 1.0);
            values.insert(value);
          }
        }
      }
    }
  }
  EXPECT_EQ(values.size(), num_keys);
}

// The mean and the spread of a uniform number, within five standard deviations.
TEST(SamplingUniform, IsUniform) {
  const SamplingParams params = params_of(3, DrawSplit::kTrain);
  constexpr int kCount = 20000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double value =
        sampling_uniform(params, static_cast<uint64_t>(i / 100), i % 10, i / 10 % 10);
    sum += value;
    squares += (value - 0.5) * (value - 0.5);
  }
  EXPECT_NEAR(sum / kCount, 0.5, 5 * 0.2887 / 141.4);
  EXPECT_NEAR(squares / kCount, 1.0 / 12, 5 * 0.0745 / 141.4);
}

}  // namespace
}  // namespace grpo::generation
