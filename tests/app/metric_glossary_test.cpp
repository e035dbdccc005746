// The README's glossary and the program's metrics are the same list.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "rl/trainer.h"

namespace grpo::app {
namespace {

TEST(MetricGlossary, NamesEveryMetricOfARun) {
  std::ostringstream text;
  text << std::ifstream(GRPO_SOURCE_DIR "/README.md").rdbuf();
  rl::RunConfig config;
  config.warm_start.num_steps = 1;
  config.checkpointing.enabled = true;
  for (const std::string& name : rl::known_metric_names(config)) {
    EXPECT_NE(text.str().find("`" + name + "`"), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace grpo::app
