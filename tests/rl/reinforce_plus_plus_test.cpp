#include "rl/objective/reinforce_plus_plus.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/core/errors.h"

namespace grpo::rl {
namespace {

TEST(ReinforcePlusPlus, NormalisesOverValidTokensAlone) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  ReinforcePlusPlusOptions options;
  options.use_kl_in_reward = true;
  options.kl_coef = 0.5;
  options.kl_type = "k1";
  const std::vector<int64_t> groups{0, 0};
  const std::vector<double> rewards{1, 3};
  const TokenRows mask{{1, 1, 0}, {1, 0}};
  const TokenRows policy{{-1.0, -1.0, kNan}, {-2.0, kNan}};
  const TokenRows reference{{-1.0, -3.0, kNan}, {-2.0, kNan}};
  const TokenRows result =
      reinforce_plus_plus_advantages(options, {groups, rewards, mask, policy, reference});
  // Before normalising: -1, -1 - 0.5 * 2, 1; mean -2/3, population variance 14/9.
  const double scale = std::sqrt(14.0 / 9.0);
  EXPECT_NEAR(result[0][0], (-1 + 2.0 / 3) / scale, 1e-14);
  EXPECT_NEAR(result[0][1], (-2 + 2.0 / 3) / scale, 1e-14);
  EXPECT_NEAR(result[1][0], (1 + 2.0 / 3) / scale, 1e-14);
}

TEST(ReinforcePlusPlus, NoSpreadIsZeroNotInfinite) {
  ReinforcePlusPlusOptions options;
  options.minus_baseline = false;
  const TokenRows result = reinforce_plus_plus_advantages(
      options, {std::vector<int64_t>{0, 0}, std::vector<double>{2, 2}, {{1, 1}, {1}}, {}, {}});
  EXPECT_EQ(result, (TokenRows{{0, 0}, {0}}));
}

TEST(ReinforcePlusPlus, RowsMustAgree) {
  ReinforcePlusPlusOptions options;
  options.use_kl_in_reward = true;
  EXPECT_THROW(
      reinforce_plus_plus_advantages(
          options, {std::vector<int64_t>{0}, std::vector<double>{2}, {{1, 1}}, {{-1}}, {{-1, -1}}}),
      InternalError);
}

}  // namespace
}  // namespace grpo::rl
