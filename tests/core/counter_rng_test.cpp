#include "model/core/counter_rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace grpo {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers published with the Random123 library.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterRngTest, EveryPartOfTheKeyMatters) {
  const std::set<double> values{uniform_at(1, 2, 3, 4),
                                uniform_at(2, 2, 3, 4),
                                uniform_at(1, 3, 3, 4),
                                uniform_at(1, 2, 4, 4),
                                uniform_at(1, 2, 3, 5),
                                uniform_at(1, 2, 4, 3),
                                uniform_at(1, 2, 3, uint64_t{4} << 32)};
  EXPECT_EQ(values.size(), 7u);
  EXPECT_EQ(uniform_at(1, 2, 3, 4), uniform_at(1, 2, 3, 4));
}

TEST(CounterRngTest, UniformsFillTheUnitInterval) {
  constexpr uint64_t kDraws = 100000;
  double sum = 0.0;
  int lowest_tenth = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double value = uniform_at(9, hash_name("test"), i, 0);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
    lowest_tenth += value < 0.1;
  }
  // Five standard deviations: 0.289 / sqrt(n) of the mean, sqrt(0.09 n) of the count.
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * 0.289 / std::sqrt(kDraws));
  EXPECT_NEAR(lowest_tenth, kDraws * 0.1, 5 * std::sqrt(0.09 * kDraws));
}

TEST(CounterRngTest, NormalsHaveMomentsOfTheNormal) {
  constexpr uint64_t kDraws = 100000;
  double sum = 0.0;
  double squares = 0.0;
  double fourth = 0.0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double value = normal_at(3, 5, i / 100, i % 100);
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += value * value;
    fourth += value * value * value * value;
  }
  // Five standard deviations of each estimate: 1, sqrt(2), sqrt(96) over sqrt(n).
  const double root = std::sqrt(static_cast<double>(kDraws));
  EXPECT_NEAR(sum / kDraws, 0.0, 5 / root);
  EXPECT_NEAR(squares / kDraws, 1.0, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(fourth / kDraws, 3.0, 5 * std::sqrt(96.0) / root);
}

TEST(HashNameTest, NamesDiffer) {
  EXPECT_NE(hash_name("layers.0"), hash_name("layers.1"));
  EXPECT_NE(hash_name(""), hash_name(std::string_view("\0", 1)));
}

}  // namespace
}  // namespace grpo
