#include "app/config/config_agreement.h"

#include <gtest/gtest.h>

#include "model/core/errors.h"
#include "tests/run_ranks.h"

namespace grpo::app {
namespace {

const std::string kYaml =
    "grpo:\n  seed: 42\ndata:\n  train:\n    path: a.jsonl\nrewards:\n  - name: x\n    type: y\n";

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kYaml;
  return text.replace(text.find(from), from.size(), to);
}

void expect_difference(const std::string& other, const std::string& key, const std::string& first,
                       const std::string& second) {
  const auto found = find_difference(kYaml, other);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->key, key);
  EXPECT_EQ(found->first, first);
  EXPECT_EQ(found->second, second);
}

TEST(OneConfig, TheFirstDifferenceHasItsWholeKey) {
  EXPECT_FALSE(find_difference(kYaml, kYaml).has_value());
  expect_difference(replaced("42", "5"), "grpo.seed", "42", "5");
  expect_difference(replaced("a.jsonl", "b"), "data.train.path", "a.jsonl", "b");
  expect_difference(replaced("type: y", "type: z"), "rewards.type", "y", "z");
  expect_difference(kYaml + "more: 1\n", "more", "", "1");
  expect_difference(replaced("    type: y\n", ""), "rewards.type", "y", "");
}

TEST(OneConfig, EveryRankRefusesAnotherThanRankZeros) {
  testing::run_ranks(3, [](parallel::World& world) {
    const auto everyone = world.make_group({0, 1, 2}, "test");
    EXPECT_NO_THROW(refuse_different_configs(kYaml, *everyone));
    try {
      refuse_different_configs(world.rank() == 1 ? replaced("42", "5") : kYaml, *everyone);
      FAIL() << "rank " << world.rank();
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()),
                "grpo.seed is '42' on rank 0 and '5' on rank 1; allowed: the same config and "
                "key=value words on every rank");
    }
  });
}

}  // namespace
}  // namespace grpo::app
