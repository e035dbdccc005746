#include "rl/objective/gdpo.h"

#include <gtest/gtest.h>

#include "model/core/errors.h"

namespace grpo::rl {
namespace {

TEST(Gdpo, WeightsFollowTheAlphabetNotTheOrderOfWriting) {
  const std::vector<int64_t> groups{0, 0, 0};
  const std::map<std::string, std::vector<double>> components{{"z", {0, 1, 5}}, {"a", {3, 0, 0}}};
  GdpoOptions options;
  options.reward_weights = {1.0, 0.0};  // "a" alone counts
  const std::vector<double> advantages = gdpo_advantages(options, groups, components);
  EXPECT_GT(advantages[0], 0.0);
  EXPECT_EQ(advantages[1], advantages[2]);
}

TEST(Gdpo, BatchIsNormalised) {
  const std::vector<double> advantages = gdpo_advantages(
      GdpoOptions(), std::vector<int64_t>{0, 0, 1, 1}, {{"a", {0, 1, 2, 8}}, {"b", {0, 3, 1, 1}}});
  double sum = 0, squares = 0;
  for (const double a : advantages) {
    sum += a;
    squares += a * a;
  }
  EXPECT_NEAR(sum, 0.0, 1e-14);
  EXPECT_NEAR(squares / 3, 1.0, 1e-14);
}

TEST(Gdpo, WithoutSpreadAllAreZero) {
  EXPECT_EQ(gdpo_advantages(GdpoOptions(), std::vector<int64_t>{0, 0}, {{"a", {1, 1}}}),
            (std::vector<double>{0, 0}));
}

TEST(Gdpo, WeightsMustMatchComponents) {
  GdpoOptions options;
  options.reward_weights = {1.0, 2.0};
  EXPECT_THROW(gdpo_advantages(options, std::vector<int64_t>{0, 0}, {{"a", {1, 1}}}),
               InternalError);
}

}  // namespace
}  // namespace grpo::rl
