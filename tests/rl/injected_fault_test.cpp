// Runs that break one thing of generation on purpose: the exactness check must notice each.
#include "generation/injected_fault.h"

#include <gtest/gtest.h>

#include "tests/rl/trained_model.h"
#include "tests/test_device.h"

namespace grpo {
namespace {

using testing::RecordedRun;
using testing::run_training;

// A temperature, for the fault about it, and long sequences, so that even differences of a last bit
// between bfloat16 tensors come to pass. Filters hide much (a token that is left alone has
// probability 1 on both sides), so they are on for their own fault alone.
rl::RunConfig config_of(const std::string& fault, const std::string& precision) {
  rl::RunConfig config = testing::trained_run_config();
  config.policy.precision = precision;
  config.policy.generation.temperature = 0.7;
  if (fault == "top_p_one_side") config.policy.generation.top_p = 0.9;
  config.policy.generation.ignore_eos = true;
  config.policy.generation.max_new_tokens = 24;
  config.policy.max_total_sequence_length = 32;
  if (fault == "kv_tile") {  // few of its differences outlive the next rounding to bfloat16
    config.policy.generation.temperature = 1.7;
    config.grpo.num_generations_per_prompt = 32;
  }
  config.grpo.max_num_steps = 2;
  config.numerics.inject_fault = fault;
  return config;
}

struct Disagreement {
  double mismatches = 0;
  double largest_error = 0;
};

Disagreement disagreement_of(const RecordedRun& run) {
  Disagreement found;
  for (const auto& metrics : run.steps) {
    EXPECT_GT(metrics.at("train/mismatch_tokens_checked"), 0.0);
    found.mismatches += metrics.at("train/mismatch_count");
    found.largest_error = std::max(found.largest_error, metrics.at("train/token_mult_prob_error"));
  }
  return found;
}

class InjectedFaults : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Precisions, InjectedFaults, ::testing::Values("float32", "bfloat16"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(InjectedFaults, EachIsNoticed) {
  const std::string precision = GetParam();
  for (const std::string& fault : generation::injected_fault_names()) {
    SCOPED_TRACE(fault);
    // A GPU's matrix library does not split sums as short as this model's.
    if (fault == "split_k" && precision == "bfloat16" && testing::is_on_gpu()) continue;
    const RecordedRun run = run_training(config_of(fault, precision));
    ASSERT_EQ(run.steps.size(), 2u);
    const Disagreement found = disagreement_of(run);
    const bool is_clean = fault == "none";
    EXPECT_EQ(found.mismatches == 0.0, is_clean) << found.mismatches;
    EXPECT_EQ(found.largest_error == 1.0, is_clean) << found.largest_error;
    EXPECT_EQ(run.steps[0].contains("numerics/injected_fault"), !is_clean);
    // The refit's own proof holds: the faults are such that the exactness check alone sees them.
    EXPECT_EQ(run.steps[1].at("refit/fingerprint_ok"), 1.0);
    int num_announced = 0;
    for (const std::string& line : run.warnings) {
      num_announced += line.find("numerics.inject_fault is " + fault) != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(num_announced, is_clean ? 0 : 1);
  }
}

// Keys and values are stale from the second refit on.
TEST(InjectedFaults, StaleKeysNeedARefit) {
  const RecordedRun run = run_training(config_of("stale_kv", "float32"));
  EXPECT_EQ(run.steps[0].at("train/mismatch_count"), 0.0);
  EXPECT_GT(run.steps[1].at("train/mismatch_count"), 0.0);
}

TEST(InjectedFaults, AFaultWithoutEffectSaysSo) {
  rl::RunConfig config = config_of("top_p_one_side", "float32");
  config.policy.generation.top_p = 1.0;
  const RecordedRun run = run_training(config);
  EXPECT_EQ(disagreement_of(run).mismatches, 0.0);
  ASSERT_FALSE(run.warnings.empty());
  EXPECT_NE(run.warnings[0].find("changes nothing: policy.generation.top_k is 0"),
            std::string::npos)
      << run.warnings[0];
}

}  // namespace
}  // namespace grpo
