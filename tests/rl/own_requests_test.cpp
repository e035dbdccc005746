#include "rl/data/own_requests.h"

#include <gtest/gtest.h>

namespace grpo::rl {
namespace {

const std::vector<std::vector<int32_t>> kPrompts = {{5, 6}, {7}, {8, 9, 10}};

std::vector<generation::GenerationRequest> requests_of(int num_ranks, int rank) {
  return own_requests({kPrompts.begin(), kPrompts.end()}, 40, 3, num_ranks, rank);
}

TEST(OwnRequests, OneRankDrawsEverySampleOfEveryPrompt) {
  const auto requests = requests_of(1, 0);
  ASSERT_EQ(requests.size(), kPrompts.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].tag, static_cast<int64_t>(i));
    EXPECT_EQ(requests[i].draw_index, 40 + i);
    EXPECT_EQ(requests[i].prompt_tokens, kPrompts[i]);
    EXPECT_EQ(requests[i].sample_indices, (std::vector<int32_t>{0, 1, 2}));
  }
}

// Nine samples on two ranks: the second prompt's are split.
TEST(OwnRequests, S03_AGroupThatSpansTwoRanksKeepsItsDrawIndexAndSamples) {
  const auto first = requests_of(2, 0);
  const auto second = requests_of(2, 1);
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(first[1].sample_indices, (std::vector<int32_t>{0}));
  EXPECT_EQ(second[0].sample_indices, (std::vector<int32_t>{1, 2}));
  for (const auto& request : {first[1], second[0]}) {
    EXPECT_EQ(request.tag, 1);
    EXPECT_EQ(request.draw_index, 41u);
    EXPECT_EQ(request.prompt_tokens, kPrompts[1]);
  }
}

TEST(OwnRequests, ARankWithoutWorkDrawsNothing) {
  EXPECT_TRUE(own_requests({}, 0, 4, 2, 1).empty());
  EXPECT_TRUE(own_requests({kPrompts.begin(), kPrompts.begin() + 1}, 0, 1, 2, 0).empty());
}

}  // namespace
}  // namespace grpo::rl
