#include "rl/state/early_stop.h"

#include <gtest/gtest.h>

#include <limits>

#include "model/core/errors.h"
#include "tests/rl/saved_run.h"

namespace grpo::rl {
namespace {

MetricSet metrics_with(double value) {
  MetricSet metrics;
  metrics.set("validation/accuracy", value);
  return metrics;
}

EarlyStopConfig config_of(bool higher_is_better, int64_t patience, double min_delta) {
  return {.metric = "validation/accuracy",
          .higher_is_better = higher_is_better,
          .patience = patience,
          .min_delta = min_delta};
}

// Steps observed until the stop is due; 0 when it never is.
int64_t stop_step(const EarlyStopConfig& config, const std::vector<double>& values) {
  EarlyStop stop(config);
  for (size_t i = 0; i < values.size(); ++i) {
    stop.observe(static_cast<int64_t>(i) + 1, metrics_with(values[i]));
    if (stop.is_due()) return static_cast<int64_t>(i) + 1;
  }
  return 0;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(EarlyStop, CountsValuesWithoutAnImprovement) {
  EXPECT_EQ(stop_step(config_of(true, 2, 0), {0.1, 0.2, 0.2, 0.3, 0.3, 0.2}), 6);
  EXPECT_EQ(stop_step(config_of(true, 2, 0), {0.1, 0.2, 0.2, 0.3, 0.3, 0.4}), 0);
  EXPECT_EQ(stop_step(config_of(false, 1, 0), {3, 2, 1, 1}), 4);
  EXPECT_EQ(stop_step(config_of(true, 1, 0), {3, 2}), 2);
}

TEST(EarlyStop, AnImprovementIsLargerThanMinDelta) {
  EXPECT_EQ(stop_step(config_of(true, 2, 0.5), {1, 1.5, 1.25}), 3);
  EXPECT_EQ(stop_step(config_of(true, 2, 0.5), {1, 1.75, 2.5}), 0);
  EXPECT_EQ(stop_step(config_of(false, 2, 0.5), {1, 0.5, 0.75}), 3);
}

TEST(EarlyStop, ValuesThatAreNotFiniteAreNoImprovement) {
  EXPECT_EQ(stop_step(config_of(true, 2, 0), {kNan, std::numeric_limits<double>::infinity()}), 2);
  EXPECT_EQ(stop_step(config_of(true, 2, 0), {kNan, 0.5, kNan, 0.75, kNan}), 0);
}

TEST(EarlyStop, StepsWithoutTheMetricDoNotCount) {
  EarlyStop stop(config_of(true, 1, 0));
  stop.observe(1, metrics_with(0.5));
  for (int64_t step = 2; step < 9; ++step) stop.observe(step, MetricSet());
  EXPECT_FALSE(stop.is_due());
  stop.observe(9, metrics_with(0.5));
  EXPECT_TRUE(stop.is_due());
  EXPECT_EQ(
      stop.message(),
      "validation/accuracy was best with 0.5 at step 1; 1 value since then is no improvement");
}

TEST(EarlyStop, IsOffWithoutAMetric) {
  EarlyStop stop(EarlyStopConfig{});
  stop.observe(1, metrics_with(0));
  EXPECT_FALSE(stop.is_due());
}

TEST(EarlyStop, GoesOnFromItsState) {
  const EarlyStopConfig config = config_of(true, 3, 0.1);
  EarlyStop before(config);
  before.observe(1, metrics_with(0.1));
  before.observe(2, metrics_with(0.05));
  EarlyStop after(config);
  after.restore(before.state_json());
  EXPECT_EQ(after.state_json(), before.state_json());
  for (int64_t step = 3; step <= 4; ++step) {
    EXPECT_FALSE(after.is_due());
    after.observe(step, metrics_with(0.2));  // 0.1 + 0.1 is not larger
  }
  EXPECT_TRUE(after.is_due());

  EarlyStopConfig other = config;
  other.metric = "train/loss";
  EarlyStop fresh(other);
  fresh.restore(after.state_json());
  EXPECT_FALSE(fresh.is_due());
  EXPECT_THROW(fresh.restore("{\"metric\": \"train/loss\", \"higher_is_better\": true}"),
               DataError);
}

// No reward is above 1, so that nothing improves on the first step by more than 1.
TEST(EarlyStop, EndsARunAndAResumedOneAtTheSameStep) {
  const testing::TemporaryFolder folder;
  RunConfig config = testing::trained_run_config();
  config.grpo.max_num_steps = 9;
  config.grpo.early_stop = {
      .metric = "train/reward", .higher_is_better = true, .patience = 3, .min_delta = 1};
  config.parallel.gtp_remat = 2;
  config.checkpointing.enabled = true;
  config.checkpointing.checkpoint_dir = (folder / "run").string();
  config.checkpointing.save_period = 2;
  const testing::RecordedRun whole = testing::run_training(config);
  EXPECT_EQ(whole.steps.size(), 4u);
  EXPECT_EQ(whole.exit_code, ExitCode::kDone);
  EXPECT_NE(whole.early_stop.find("at step 1; 3 values"), std::string::npos) << whole.early_stop;
  EXPECT_TRUE(std::filesystem::exists(folder / "run/step_4/manifest.json"));
  const testing::RecordedRun resumed = testing::run_training(config, folder / "run/step_2");
  EXPECT_EQ(resumed.steps.size(), 2u);
  EXPECT_EQ(resumed.early_stop, whole.early_stop);
  // The stop is in the last checkpoint; more patience goes on.
  EXPECT_EQ(testing::run_training(config, folder / "run/step_4").steps.size(), 0u);
  config.grpo.early_stop.patience = 4;
  EXPECT_EQ(testing::run_training(config, folder / "run/step_4").steps.size(), 1u);
}

}  // namespace
}  // namespace grpo::rl
