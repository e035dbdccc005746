// The README's glossary and the program's metrics are the same list.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "rl/config/known_metrics.h"
#include "rl/run/trainer.h"

namespace grpo::app {
namespace {

TEST(MetricGlossary, NamesEveryMetricOfARun) {
  std::ostringstream text;
  text << std::ifstream(GRPO_SOURCE_DIR "/README.md").rdbuf();
  rl::RunConfig config;
  config.warm_start.num_steps = 1;
  config.checkpointing.enabled = true;
  config.numerics.inject_fault = "split_k";
  config.grpo.val_num_generations_per_prompt = 2;
  config.data.validation.resize(2);
  for (rl::ValidationDatasetConfig& dataset : config.data.validation) dataset.name = "<name>";
  for (const char* algorithm : {"grpo", "sft"}) {
    config.algorithm = algorithm;
    for (const std::string& name : rl::known_metric_names(config)) {
      EXPECT_NE(text.str().find("`" + name + "`"), std::string::npos) << name;
    }
  }
}

}  // namespace
}  // namespace grpo::app
