#include "rl/objective/reward_shaping.h"

#include <gtest/gtest.h>

#include "model/core/errors.h"

namespace grpo::rl {
namespace {

TEST(OverlongPenalty, FallsLinearlyAndStaysBeyondTheMaximum) {
  const OverlongPenalty overlong{.buffer_length = 4, .penalty = 2.0, .max_response_length = 10};
  EXPECT_EQ(penalize_overlong(overlong, std::vector<int64_t>{0, 6, 7, 10, 11, 100},
                              std::vector<double>(6, 1.0)),
            (std::vector<double>{1.0, 1.0, 0.5, -1.0, -1.0, -1.0}));
}

TEST(OverlongPenalty, RejectsABufferLongerThanTheResponse) {
  EXPECT_THROW(penalize_overlong({.buffer_length = 11, .penalty = 1, .max_response_length = 10},
                                 std::vector<int64_t>{1}, std::vector<double>{1}),
               InternalError);
}

TEST(ScaleTruncated, TouchesTruncatedResponsesAlone) {
  EXPECT_EQ(scale_truncated(0.25, {true, false, true}, std::vector<double>{1, 1, -2}),
            (std::vector<double>{0.25, 1, -0.5}));
  EXPECT_THROW(scale_truncated(1.5, {true}, std::vector<double>{1}), InternalError);
}

}  // namespace
}  // namespace grpo::rl
