// numerics.mode: what exact refuses and checks, and what fast allows.
#include <gtest/gtest.h>

#include <algorithm>

#include "rl/config/resolve_config.h"
#include "rl/run/run_inputs.h"
#include "tests/rl/trained_model.h"
#include "tests/test_device.h"

namespace grpo {
namespace {

using testing::RecordedRun;
using testing::run_training;
using testing::test_device;

rl::RunConfig config_of(const char* mode) {
  rl::RunConfig config = testing::trained_run_config();
  config.grpo.max_num_steps = 2;
  config.numerics.mode = mode;
  return config;
}

int64_t num_probe_lines(const RecordedRun& run) {
  return std::count_if(run.messages.begin(), run.messages.end(), [](const std::string& line) {
    return line.find("product shapes give a row the same bits") != std::string::npos;
  });
}

TEST(NumericsMode, OperatorsMayUseSplitKInFastModeAlone) {
  EXPECT_EQ(config_of("exact").numerics.operators().split_k, SplitK::kNever);
  EXPECT_EQ(config_of("fast").numerics.operators().split_k, SplitK::kAllowed);
}

// On a GPU; the CPU's products are exact by their code.
TEST(NumericsMode, ExactProbesTheProductsOfAGpu) {
  const bool on_gpu = test_device().kind == DeviceKind::kCuda;
  EXPECT_EQ(num_probe_lines(run_training(config_of("exact"))), on_gpu ? 1 : 0);
  EXPECT_EQ(num_probe_lines(run_training(config_of("fast"))), 0);
}

TEST(NumericsMode, ExactNeedsOnePrecision) {
  rl::RunConfig config = config_of("exact");
  config.policy.generation.precision = "bfloat16";
  for (const bool is_checked_early : {true, false}) {
    try {
      if (is_checked_early) {
        rl::resolve(config, 1);
        rl::check_run_inputs(config);
      } else {
        run_training(config);
      }
      FAIL() << "not refused";
    } catch (const ConfigError& error) {
      EXPECT_STREQ(error.what(),
                   "policy.generation.precision is bfloat16, but the policy computes in float32 "
                   "and numerics.mode is exact; allowed: float32, null, or numerics.mode=fast");
    }
  }
  config.policy.precision = "bfloat16";
  const RecordedRun run = run_training(config);
  for (const auto& metrics : run.steps) EXPECT_EQ(metrics.at("train/mismatch_count"), 0.0);
}

TEST(NumericsMode, FastGeneratesInAnotherPrecision) {
  rl::RunConfig config = config_of("fast");
  config.parallel.gtp_remat = 2;
  const RecordedRun same = run_training(config);
  config.policy.generation.precision = "bfloat16";
  const RecordedRun run = run_training(config);
  ASSERT_EQ(run.steps.size(), 2u);
  for (size_t step = 0; step < run.steps.size(); ++step) {
    const auto& metrics = run.steps[step];
    EXPECT_GT(metrics.at("train/mismatch_count"), 0.0);
    EXPECT_GT(metrics.at("train/token_mult_prob_error"), 1.0);
    EXPECT_LT(metrics.at("train/token_mult_prob_error"), 1.1);
    EXPECT_EQ(metrics.at("refit/fingerprint_ok"), 1.0);
    EXPECT_EQ(metrics.at("refit/bytes"), same.steps[step].at("refit/bytes") / 2);
  }
  // Differences are no news in fast mode.
  EXPECT_EQ(run.warnings, same.warnings);
}

}  // namespace
}  // namespace grpo
