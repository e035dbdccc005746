#include "rl/objective/advantage.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/core/errors.h"

namespace grpo::rl {
namespace {

TEST(GroupAdvantages, AnyOrderOfSamples) {
  const std::vector<int64_t> groups{7, 3, 7, 3, 7};
  const std::vector<double> rewards{1, 10, 2, 14, 6};
  const GroupAdvantages plain = group_advantages(groups, rewards, false, false);
  EXPECT_EQ(plain.baseline, (std::vector<double>{3, 12, 3, 12, 3}));
  EXPECT_EQ(plain.advantage, (std::vector<double>{-2, -2, -1, 2, 3}));
  EXPECT_DOUBLE_EQ(plain.std[0], std::sqrt(7.0));
  const GroupAdvantages left_out = group_advantages(groups, rewards, true, false);
  EXPECT_EQ(left_out.baseline, (std::vector<double>{4, 14, 3.5, 10, 1.5}));
}

TEST(GroupAdvantages, AGroupOfOneHasNone) {
  for (const bool leave_one_out : {false, true}) {
    const GroupAdvantages result = group_advantages(
        std::vector<int64_t>{1, 2, 2}, std::vector<double>{5, 0, 1}, leave_one_out, true);
    EXPECT_EQ(result.advantage[0], 0.0);
    EXPECT_EQ(result.std[0], 0.0);
    EXPECT_GT(result.advantage[2], 0.0);
  }
}

TEST(GroupAdvantages, EqualRewardsAreExactlyZeroThoughTheirMeanRounds) {
  const std::vector<int64_t> groups(7, 0);
  const std::vector<double> rewards(7, 0.1);
  double sum = 0;
  for (const double reward : rewards) sum += reward;
  ASSERT_NE(sum / 7, 0.1);  // what makes this case hard
  for (const bool leave_one_out : {false, true}) {
    const GroupAdvantages result = group_advantages(groups, rewards, leave_one_out, true);
    EXPECT_EQ(result.advantage, std::vector<double>(7, 0.0));
    EXPECT_EQ(result.std, std::vector<double>(7, 0.0));
  }
}

TEST(GroupAdvantages, ASingleOddRewardLeftOutKeepsItsPlainAdvantage) {
  const GroupAdvantages result =
      group_advantages(std::vector<int64_t>(4, 0), std::vector<double>{1, 0, 0, 0}, true, true);
  EXPECT_EQ(result.advantage[0], 1.0);
  EXPECT_LT(result.advantage[1], 0.0);
}

TEST(GroupAdvantages, LengthsMustAgree) {
  EXPECT_THROW(group_advantages(std::vector<int64_t>{0}, std::vector<double>{1, 2}, false, false),
               InternalError);
}

}  // namespace
}  // namespace grpo::rl
