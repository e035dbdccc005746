#include "model/core/nearest_name.h"

#include <gtest/gtest.h>

namespace grpo {
namespace {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "ab"), 2u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("sitting", "kitten"), 3u);
}

TEST(EditDistance, SwappedNeighboursAreOneEdit) {
  EXPECT_EQ(edit_distance("sede", "seed"), 1u);
  EXPECT_EQ(edit_distance("ba", "ab"), 1u);
}

TEST(NearestName, PicksTheSmallestDistanceAndTheFirstAmongEquals) {
  EXPECT_EQ(nearest_name("max_step", {"seed", "max_steps", "max_num_steps"}), "max_steps");
  EXPECT_EQ(nearest_name("xb", {"ab", "cb"}), "ab");
  EXPECT_EQ(nearest_name("anything", {}), "");
}

}  // namespace
}  // namespace grpo
