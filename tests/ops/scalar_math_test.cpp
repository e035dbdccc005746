#include "model/ops/cpu/scalar_math.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/ops/tolerances.h"

namespace grpo::ops::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Error in units of the spacing of floats at the exact value.
double ulps(float actual, double exact) {
  const auto rounded = static_cast<float>(exact);
  const double spacing = double{std::nextafter(rounded, kInfinity)} - double{rounded};
  return std::abs(double{actual} - exact) / spacing;
}

TEST(ExpFloatTest, IsWithinItsBoundOverTheWholeRange) {
  double worst = 0.0;
  for (float x = -103.9f; x < 88.72f; x += 0.000731f) {
    worst = std::max(worst, ulps(exp_float(x), std::exp(double{x})));
  }
  EXPECT_LE(worst, kExpUlps);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(ExpFloatTest, SpecialValues) {
  EXPECT_EQ(exp_float(0.0f), 1.0f);
  EXPECT_EQ(exp_float(-0.0f), 1.0f);
  EXPECT_EQ(exp_float(-kInfinity), 0.0f);
  EXPECT_EQ(exp_float(-1e30f), 0.0f);
  EXPECT_EQ(exp_float(-104.0f), 0.0f);
  EXPECT_GT(exp_float(-103.0f), 0.0f);
  EXPECT_EQ(exp_float(kInfinity), kInfinity);
  EXPECT_EQ(exp_float(88.8f), kInfinity);
  EXPECT_TRUE(std::isfinite(exp_float(88.7f)));
  EXPECT_TRUE(std::isnan(exp_float(std::numeric_limits<float>::quiet_NaN())));
}

// Vectorised and scalar code give the same bits.
TEST(ExpFloatTest, LoopsAgreeWithSingleCalls) {
  std::vector<float> x;
  for (int i = 0; i < 1003; ++i) x.push_back(-120.0f + 0.23f * static_cast<float>(i));
  std::vector<float> together(x.size());
  for (size_t i = 0; i < x.size(); ++i) together[i] = exp_float(x[i]);
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float single = x[i];
    ASSERT_EQ(exp_float(single), together[i]) << x[i];
  }
}

// Against the long double logarithm.
TEST(LogDoubleTest, IsWithinItsBound) {
  double worst = 0.0;
  const auto look = [&](double x) {
    const long double exact = std::log(static_cast<long double>(x));
    const auto rounded = static_cast<double>(exact);
    const double spacing = std::nextafter(std::abs(rounded), double{kInfinity}) - std::abs(rounded);
    const auto error =
        static_cast<double>(std::abs(exact - static_cast<long double>(log_double(x))));
    worst = std::max(worst, error / spacing);
  };
  for (double x = 0.25; x < 4.0; x += 0.0000371) look(x);
  for (double x = 0x1p-1022; x < 0x1p1023; x *= 1.0371) look(x);
  for (double x = 1.0 - 1e-9; x < 1.0 + 1e-9; x += 0x1.3p-42) look(x);
  EXPECT_LE(worst, kLogUlps);
  EXPECT_EQ(log_double(1.0), 0.0);
  EXPECT_EQ(log_double(0.0), -double{kInfinity});
}

TEST(SigmoidTest, Saturates) {
  EXPECT_EQ(sigmoid(0.0f), 0.5f);
  EXPECT_EQ(sigmoid(200.0f), 1.0f);
  EXPECT_EQ(sigmoid(-200.0f), 0.0f);
}

}  // namespace
}  // namespace grpo::ops::cpu
