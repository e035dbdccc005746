// Whole runs from weights that answer some prompts: nothing may pass by not happening.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/rl/saved_run.h"
#include "tests/rl/trained_model.h"
#include "tests/test_device.h"

namespace grpo {
namespace {

using testing::RecordedRun;
using testing::run_training;
using testing::trained_run_config;

void expect_exact(const std::map<std::string, double>& metrics) {
  EXPECT_EQ(metrics.at("train/token_mult_prob_error"), 1.0);
  EXPECT_EQ(metrics.at("train/mismatch_count"), 0.0);
  EXPECT_EQ(metrics.at("train/cut_mismatch_count"), 0.0);
  EXPECT_GT(metrics.at("train/mismatch_tokens_checked"), 0.0);
  EXPECT_EQ(metrics.at("train/mismatch_tokens_checked"), metrics.at("train/global_valid_toks"));
}

void set_filters(rl::RunConfig& config, int64_t max_kept_ids) {
  config.policy.generation.temperature = 0.7;
  config.policy.generation.top_p = 0.9;
  config.policy.generation.top_k = 5;
  config.policy.generation.max_kept_ids = max_kept_ids;
}

// Lengths and finish reasons of a step's samples.
struct Responses {
  std::set<size_t> lengths;
  std::set<std::string> finish_reasons;
};

Responses responses_of(const std::vector<std::string>& samples) {
  Responses responses;
  for (const std::string& line : samples) {
    const auto sample = nlohmann::json::parse(line);
    responses.lengths.insert(sample["response_tokens"].size());
    responses.finish_reasons.insert(sample["finish_reason"].get<std::string>());
  }
  return responses;
}

TEST(EndToEnd, EveryStepReallyHappens) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = 6;
  config.parallel.gtp_remat = 2;
  const RecordedRun run = run_training(config);
  ASSERT_EQ(run.steps.size(), 6u);
  EXPECT_EQ(run.exit_code, ExitCode::kDone);
  std::set<double> fingerprints;
  std::set<size_t> response_lengths;
  for (size_t step = 0; step < run.steps.size(); ++step) {
    SCOPED_TRACE(fmt::format("step {}", step + 1));
    const auto& metrics = run.steps[step];
    expect_exact(metrics);
    EXPECT_GT(metrics.at("train/grad_norm"), 0.0);
    EXPECT_GT(metrics.at("refit/changed_elements"), 0.0);
    EXPECT_GT(metrics.at("refit/remote_bytes"), 0.0);
    EXPECT_EQ(metrics.at("refit/fingerprint_ok"), 1.0);
    EXPECT_TRUE(fingerprints.insert(metrics.at("refit/fingerprint")).second);
    EXPECT_GT(metrics.at("train/baseline_reward/pct_mixed"), 0.0);
    EXPECT_LT(metrics.at("train/frac_reward_zero_std"), 1.0);
    EXPECT_GT(metrics.at("gtp/gathers"), 0.0);
    EXPECT_GT(metrics.at("gtp/gathered_bytes"), 0.0);
    EXPECT_GT(metrics.at("gtp/reduce_scattered_bytes"), 0.0);
    ASSERT_EQ(run.samples[step].size(), 32u);
    const Responses responses = responses_of(run.samples[step]);
    response_lengths.insert(responses.lengths.begin(), responses.lengths.end());
    EXPECT_EQ(responses.finish_reasons, (std::set<std::string>{"length", "stop"}));
  }
  EXPECT_GT(response_lengths.size(), 1u);
}

// gathers = micro-batches x scheduled reads of sharded weights, for the policy: 2 layers of 4
// matrices read in the forward and in the backward, the embedding once, the tied head once.
TEST(EndToEnd, GathersAreThoseOfTheSchedule) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = 1;
  config.parallel.gtp_remat = 2;
  const RecordedRun run = run_training(config);
  EXPECT_EQ(run.steps[0].at("gtp/gathers"), 2 * 4 * 2 + 2);
}

class Layouts : public ::testing::TestWithParam<std::pair<int, int>> {};

// The first step starts from equal weights: rollout, rewards, log-probabilities, loss and metrics
// have the same bits; replicas add gradients in another order.
TEST_P(Layouts, FirstStepHasTheSameBits) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = 1;
  config.policy.sequence_packing.train_mb_multiple = 4;
  static const RecordedRun reference = run_training(config);
  config.parallel.gtp_remat = GetParam().first;
  config.parallel.data = GetParam().second;
  const RecordedRun run = run_training(config);
  EXPECT_EQ(run.samples, reference.samples);
  std::map<std::string, double> metrics = run.steps[0];
  if (config.parallel.data > 1) {
    double& norm = metrics.at("train/grad_norm");
    EXPECT_NEAR(norm / reference.steps[0].at("train/grad_norm"), 1.0, 1e-5);
    norm = reference.steps[0].at("train/grad_norm");
  }
  testing::expect_same_metrics_at_any_gtp(metrics, reference.steps[0]);
}

INSTANTIATE_TEST_SUITE_P(GtpAndDp, Layouts,
                         ::testing::Values(std::pair(2, 1), std::pair(3, 1), std::pair(4, 1),
                                           std::pair(2, 2), std::pair(1, 3)));

// GTP adds no numerical error: whole runs, weights of warm start and updates included, are those of
// one rank bit for bit. Both dtypes, one update a step and several, with and without filters.
struct GtpRun {
  const char* precision;
  int64_t global_batch_size;
  std::optional<int64_t> max_kept_ids = std::nullopt;  // with filters
};

class GtpRuns : public ::testing::TestWithParam<GtpRun> {};

TEST_P(GtpRuns, AreThoseOfOneRankBitForBit) {
  rl::RunConfig config = trained_run_config();
  config.policy.precision = GetParam().precision;
  config.policy.train_global_batch_size = GetParam().global_batch_size;
  if (GetParam().max_kept_ids) set_filters(config, *GetParam().max_kept_ids);
  config.policy.sequence_packing.train_mb_multiple = 4;
  config.policy.sequence_packing.train_mb_tokens = 64;
  config.loss_fn.reference_policy_kl_penalty = 0.05;
  config.warm_start = {.num_steps = 3, .global_batch_size = 10, .lr = 1e-4};
  config.grpo.max_num_steps = 4;
  const RecordedRun reference = run_training(config);
  ASSERT_EQ(reference.steps.size(), 4u);
  const bool is_on_device = testing::test_device().kind == DeviceKind::kCuda;
  for (const int gtp_remat : {2, 3, 4}) {
    if (is_on_device && !testing::has_device_for_ranks(gtp_remat)) continue;
    config.parallel.gtp_remat = gtp_remat;
    const RecordedRun run = run_training(config);
    ASSERT_EQ(run.steps.size(), 4u);
    for (size_t step = 0; step < 4; ++step) {
      SCOPED_TRACE(fmt::format("gtp_remat {}, step {}", gtp_remat, step + 1));
      expect_exact(run.steps[step]);
      EXPECT_GT(run.steps[step].at("gtp/gathers"), 0);
      EXPECT_GT(run.steps[step].at("train/grad_norm"), 0);
      // Fingerprints are of the weights, so that those are equal too.
      EXPECT_TRUE(run.steps[step].contains("refit/fingerprint"));
      testing::expect_same_metrics_at_any_gtp(run.steps[step], reference.steps[step]);
    }
    EXPECT_EQ(run.samples, reference.samples);
  }
}

INSTANTIATE_TEST_SUITE_P(DtypesAndBatches, GtpRuns,
                         ::testing::Values(GtpRun{"float32", 0}, GtpRun{"float32", 8},
                                           GtpRun{"bfloat16", 0}, GtpRun{"bfloat16", 8},
                                           GtpRun{"float32", 8, 256}, GtpRun{"float32", 8, 0}));

class Exactness : public ::testing::TestWithParam<std::tuple<int, int64_t>> {};

// Several updates a rollout, filters on, temperature below 1: stored sets and a scoring pass before
// the first update. Sets by id and by a threshold.
TEST_P(Exactness, HoldsWithFiltersAndSeveralUpdates) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = 4;
  config.parallel.gtp_remat = std::get<0>(GetParam());
  config.policy.train_global_batch_size = 16;
  set_filters(config, std::get<1>(GetParam()));
  const RecordedRun run = run_training(config);
  ASSERT_EQ(run.steps.size(), 4u);
  for (const auto& metrics : run.steps) {
    expect_exact(metrics);
    EXPECT_GT(metrics.at("train/grad_norm"), 0.0);
    // The second update's policy is not the one that drew the samples.
    EXPECT_NE(metrics.at("train/probs_ratio"), 1.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Gtp, Exactness,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(int64_t{256}, int64_t{0})));

TEST(Exactness, HoldsInBfloat16) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = 3;
  config.parallel.gtp_remat = 2;
  config.policy.precision = "bfloat16";
  for (const auto& metrics : run_training(config).steps) {
    expect_exact(metrics);
    EXPECT_GT(metrics.at("refit/changed_elements"), 0.0);
  }
}

TEST(EndToEnd, TwoRunsHaveTheSameBits) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = 3;
  config.parallel.gtp_remat = 2;
  const RecordedRun first = run_training(config);
  const RecordedRun second = run_training(config);
  EXPECT_EQ(first.samples, second.samples);
  for (size_t step = 0; step < first.steps.size(); ++step) {
    for (const auto& [name, value] : first.steps[step]) {
      if (name.starts_with("timing/") || name.starts_with("performance/") ||
          name == "refit/seconds") {
        continue;
      }
      EXPECT_EQ(value, second.steps[step].at(name)) << name << " at step " << step + 1;
    }
  }
}

TEST(EndToEnd, AnotherSeedDrawsOtherSamples) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = 1;
  const RecordedRun first = run_training(config);
  config.grpo.seed += 1;
  EXPECT_NE(first.samples, run_training(config).samples);
}

TEST(EndToEnd, StopGateEndsTheRun) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = 5;
  rl::GateConfig gate;
  gate.metric = "train/reward";
  gate.min = 2.0;
  gate.action = "stop";
  config.gates.push_back(gate);
  const RecordedRun run = run_training(config);
  EXPECT_EQ(run.steps.size(), 1u);
  EXPECT_EQ(run.exit_code, ExitCode::kGate);
}

}  // namespace
}  // namespace grpo
