#include "rl/objective/lr_schedule.h"

#include <gtest/gtest.h>

#include "tests/rl/null_visitor.h"

namespace grpo::rl {
namespace {

SchedulerConfig make(const std::string& name, int64_t warmup, int64_t decay, double ratio) {
  SchedulerConfig config;
  config.name = name;
  config.warmup_steps = warmup;
  config.decay_steps = decay;
  config.min_lr_ratio = ratio;
  return config;
}

TEST(LrSchedule, WarmsUpFromTheFirstStep) {
  const SchedulerConfig config = make("constant", 4, 0, 0);
  EXPECT_EQ(lr_factor(config, 0, 100), 0.25);
  EXPECT_EQ(lr_factor(config, 3, 100), 1.0);
  EXPECT_EQ(lr_factor(config, 99, 100), 1.0);
}

TEST(LrSchedule, LinearReachesItsLowestAtDecaySteps) {
  const SchedulerConfig config = make("linear", 2, 12, 0.1);
  EXPECT_EQ(lr_factor(config, 2, 1000), 1.0);
  EXPECT_DOUBLE_EQ(lr_factor(config, 7, 1000), 0.55);
  EXPECT_EQ(lr_factor(config, 12, 1000), 0.1);
  EXPECT_EQ(lr_factor(config, 500, 1000), 0.1);
}

TEST(LrSchedule, CosineIsHalfwayInTheMiddle) {
  const SchedulerConfig config = make("cosine", 0, 0, 0.2);
  EXPECT_EQ(lr_factor(config, 0, 8), 1.0);
  EXPECT_DOUBLE_EQ(lr_factor(config, 4, 8), 0.6);
  EXPECT_LT(lr_factor(config, 7, 8), 0.3);
  EXPECT_GT(lr_factor(config, 7, 8), 0.2);
}

TEST(LrSchedule, ARunOfOneStepLearns) { EXPECT_EQ(lr_factor(make("linear", 0, 0, 0), 0, 1), 1.0); }

TEST(LrSchedule, Validation) {
  EXPECT_EQ(validation_error(make("linear", 2, 12, 0.1)), "");
  EXPECT_EQ(validation_error(make("linear", 12, 12, 0.1)),
            "test.yaml:1:1: decay_steps: 12 is neither 0 nor above warmup_steps (12)");
  EXPECT_EQ(validation_error(make("constant", 0, 5, 0)),
            "test.yaml:1:1: decay_steps: 5 has no effect with name: constant; allowed: 0");
  EXPECT_EQ(validation_error(make("cosine", 0, 0, 1.5)),
            "test.yaml:1:1: min_lr_ratio is 1.5; allowed: 0 to 1");
}

}  // namespace
}  // namespace grpo::rl
