#include "rl/state/gates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/rl/null_visitor.h"

namespace grpo::rl {
namespace {

const std::set<std::string> kKnown{"train/loss", "train/reward", "validation/accuracy"};

GateConfig make_gate(const std::string& metric, const std::string& reduction) {
  GateConfig gate;
  gate.metric = metric;
  gate.reduction = reduction;
  return gate;
}

std::vector<GateTrip> check(GateKeeper& keeper, int64_t step, double loss) {
  MetricSet metrics;
  metrics.set("train/loss", loss);
  return keeper.check(step, metrics);
}

TEST(MetricSet, KeepsOrderAndRefusesASecondValue) {
  MetricSet metrics;
  metrics.set("b", 1);
  metrics.set("a", 2);
  EXPECT_EQ(metrics.values()[0].first, "b");
  EXPECT_EQ(metrics.get("a"), 2.0);
  EXPECT_EQ(metrics.get("c"), std::nullopt);
  EXPECT_THROW(metrics.set("b", 1), InternalError);
}

TEST(Gates, UnknownMetricIsAnErrorWithTheNearestName) {
  try {
    GateKeeper keeper({make_gate("train/los", "last")}, kKnown);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "gates: this run has no metric \"train/los\"; the nearest is \"train/loss\"");
  }
}

TEST(Gates, MaxTripsWithValueBoundAndStep) {
  GateConfig gate = make_gate("train/loss", "max");
  gate.max = 1.05;
  GateKeeper keeper({gate}, kKnown);
  EXPECT_TRUE(check(keeper, 1, 1.0).empty());
  EXPECT_TRUE(check(keeper, 2, 1.05).empty());
  EXPECT_FALSE(keeper.failed());
  const std::vector<GateTrip> trips = check(keeper, 3, 1.1011);
  ASSERT_EQ(trips.size(), 1u);
  EXPECT_EQ(trips[0].message, "gate train/loss: max 1.1011 > 1.05 at step 3");
  EXPECT_TRUE(keeper.failed());
  EXPECT_EQ(check(keeper, 4, 1.0).size(), 1u);
  const GateSummary summary = keeper.summary()[0];
  EXPECT_EQ(summary.label, "max(train/loss) <= 1.05");
  EXPECT_EQ(summary.num_trips, 2);
  EXPECT_EQ(summary.num_checked, 4);
  EXPECT_EQ(summary.worst, 1.1011);
  EXPECT_EQ(summary.worst_step, 3);
}

TEST(Gates, WindowsHoldTheLastSteps) {
  GateConfig mean = make_gate("train/loss", "mean");
  mean.window = 2;
  mean.min = 2.0;
  mean.action = "warn";
  GateConfig median = make_gate("train/loss", "median");
  median.max = 3.0;
  GateKeeper keeper({mean, median}, kKnown);
  EXPECT_EQ(check(keeper, 1, 1.0)[0].message, "gate train/loss: mean 1 < 2 at step 1");
  EXPECT_TRUE(check(keeper, 2, 3.0).empty());
  EXPECT_TRUE(check(keeper, 3, 100.0).empty());  // medians 1, 2, 3
  EXPECT_FALSE(keeper.failed());
  EXPECT_EQ(check(keeper, 4, 101.0)[0].value, 51.5);  // median of 1, 3, 100, 101
  EXPECT_EQ(keeper.summary()[0].label, "mean(train/loss, last 2) >= 2");
}

TEST(Gates, NonFiniteValuesTripWhateverTheBound) {
  GateConfig last = make_gate("train/loss", "last");
  last.max = std::numeric_limits<double>::infinity();
  GateConfig max = make_gate("train/loss", "max");
  max.max = 10;
  max.window = 2;
  GateKeeper keeper({last, max}, kKnown);
  const std::vector<GateTrip> trips = check(keeper, 1, std::nan(""));
  ASSERT_EQ(trips.size(), 2u);
  EXPECT_EQ(trips[0].message, "gate train/loss: last nan is not finite at step 1");
  EXPECT_EQ(check(keeper, 2, 1.0).size(), 1u);  // still in the window of `max`
  EXPECT_TRUE(check(keeper, 3, 1.0).empty());
  EXPECT_TRUE(std::isnan(keeper.summary()[0].worst));
}

TEST(Gates, AnAbsentMetricIsNotChecked) {
  GateConfig gate = make_gate("validation/accuracy", "last");
  gate.min = 0.5;
  GateKeeper keeper({gate}, kKnown);
  EXPECT_TRUE(check(keeper, 1, 0.0).empty());
  EXPECT_EQ(keeper.summary()[0].num_checked, 0);
}

TEST(GateConfig, Validation) {
  GateConfig gate = make_gate("train/loss", "last");
  EXPECT_EQ(validation_error(gate), "test.yaml:1:1: min: a gate needs a bound: min, max or both");
  gate.max = 1;
  EXPECT_EQ(validation_error(gate), "");
  gate.min = 2;
  EXPECT_EQ(validation_error(gate), "test.yaml:1:1: min: 2 is above max (1)");
  gate.min.reset();
  gate.window = 3;
  EXPECT_EQ(validation_error(gate),
            "test.yaml:1:1: window: 3 has no effect with reduction: last; allowed: 0, 1");
}

}  // namespace
}  // namespace grpo::rl
