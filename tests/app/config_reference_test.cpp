#include "app/config/config_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "app/config/config_catalog.h"
#include "rl/config/run_config.h"

namespace grpo::app {
namespace {

TEST(ConfigReference, ReadmeHoldsTheGeneratedTable) {
  std::ostringstream text;
  text << std::ifstream(GRPO_SOURCE_DIR "/README.md").rdbuf();
  const std::string readme = text.str();
  const std::string begin = "<!-- config-reference:begin -->\n";
  const size_t start = readme.find(begin);
  const size_t end = readme.find("<!-- config-reference:end -->");
  ASSERT_NE(start, std::string::npos) << "README.md has no line " << begin;
  ASSERT_NE(end, std::string::npos) << "README.md has no line <!-- config-reference:end -->";
  EXPECT_EQ(readme.substr(start + begin.size(), end - start - begin.size()), config_reference())
      << "replace the table by the output of: grpo_train --print-config-reference";
}

TEST(ConfigReference, ShowsKeyDefaultAllowedAndReason) {
  const std::string table = config_reference();
  EXPECT_NE(table.find("| `grpo.seed` | `42` | an integer | keys initialisation"),
            std::string::npos);
  EXPECT_NE(table.find("| `numerics.mode` | `exact` | one of exact, fast |"), std::string::npos);
  EXPECT_NE(table.find("| `policy.precision` | `null` | text or null |"), std::string::npos);
  EXPECT_NE(table.find("| `gates.[].max` | `null` | a number or null |"), std::string::npos);
  EXPECT_NE(table.find("| `policy.optimizer.kwargs.lr` | `1.0e-06` | a number |"),
            std::string::npos);
}

TEST(ConfigReference, EveryKeyHasAReason) {
  rl::RunConfig config;
  const ConfigKey root =
      make_config_catalog([&](ConfigVisitor& visitor) { config.visit(visitor); });
  std::vector<const ConfigKey*> open = {&root};
  size_t num_fields = 0;
  while (!open.empty()) {
    const ConfigKey* section = open.back();
    open.pop_back();
    for (const ConfigKey& key : section->keys) {
      EXPECT_FALSE(key.reason.empty()) << key.path;
      EXPECT_EQ(std::count(key.reason.begin(), key.reason.end(), '\n'), 0) << key.path;
      num_fields += key.keys.empty() ? 1 : 0;
      open.push_back(&key);
    }
  }
  EXPECT_GT(num_fields, 70u);
}

}  // namespace
}  // namespace grpo::app
