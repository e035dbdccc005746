// Validation of GRPO runs: metrics by hand, the same bits under every layout, and training that
// does not notice.
#include <gtest/gtest.h>

#include <fstream>

#include "rl/loop/validation_metrics.h"
#include "tests/rl/saved_run.h"

namespace grpo {
namespace {

using testing::RecordedRun;
using testing::run_training;
using testing::TemporaryFolder;
using testing::trained_run_config;

TEST(ValidationMetrics, AgreeWithHandCounts) {
  rl::MetricSet metrics;
  // Prompts of 2 samples: best rewards 1, 0 and 0.5.
  rl::add_validation_metrics(
      metrics, {{.name = "one", .samples = {{0, 1, 4}, {0, 0, 2}, {1, 0, 3}, {1, 0, 1}}},
                {.name = "two", .samples = {{0, 0.25, 8}, {0, 0.5, 6}}}});
  const std::map<std::string, double> expected{
      {"validation/accuracy", 1.75 / 6},  {"validation/avg_length", 4.0},
      {"validation/pass_k", 0.5},         {"validation/one/accuracy", 0.25},
      {"validation/one/avg_length", 2.5}, {"validation/one/pass_k", 0.5},
      {"validation/two/accuracy", 0.375}, {"validation/two/avg_length", 7.0},
      {"validation/two/pass_k", 0.5}};
  EXPECT_EQ((std::map<std::string, double>{metrics.values().begin(), metrics.values().end()}),
            expected);
}

TEST(ValidationMetrics, OneDatasetWithOneSampleHasNoPassK) {
  rl::MetricSet metrics;
  rl::add_validation_metrics(metrics, {{.name = "one", .samples = {{0, 1, 4}, {1, 0, 2}}}});
  EXPECT_EQ(metrics.values(), (std::vector<std::pair<std::string, double>>{
                                  {"validation/accuracy", 0.5}, {"validation/avg_length", 3.0}}));
}

rl::RunConfig validated_config(int64_t num_steps) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = num_steps;
  config.grpo.num_prompts_per_step = 4;
  config.data.validation.push_back({.name = "sums", .path = config.data.train.path});
  config.grpo.validation = {.val_period = 2, .val_at_start = true, .val_at_end = false};
  config.grpo.max_val_samples = 20;
  config.grpo.val_num_generations_per_prompt = 2;
  return config;
}

TEST(Validation, HappensAtItsSteps) {
  rl::RunConfig config = validated_config(5);
  const RecordedRun run = run_training(config);
  EXPECT_TRUE(run.setup.contains("validation/accuracy"));
  for (size_t step = 1; step <= 5; ++step) {
    EXPECT_EQ(run.steps[step - 1].contains("validation/accuracy"), step % 2 == 0) << step;
  }
  config.grpo.validation = {.val_period = 0, .val_at_start = false, .val_at_end = true};
  const RecordedRun at_end = run_training(config);
  EXPECT_FALSE(at_end.setup.contains("validation/accuracy"));
  EXPECT_FALSE(at_end.steps[3].contains("validation/accuracy"));
  EXPECT_GT(at_end.steps[4].at("validation/accuracy"), 0);
  EXPECT_GT(at_end.steps[4].at("memory/validation/peak_bytes"), 0);
}

// The answers of a prompt that this model always gets right and of one that it cannot know.
TEST(Validation, AccuracyIsTheRewardOfItsOwnDrawsOfThePolicyAsItIs) {
  rl::RunConfig config = validated_config(2);
  const RecordedRun run = run_training(config);
  EXPECT_GT(run.setup.at("validation/accuracy"), 0);
  EXPECT_LT(run.setup.at("validation/accuracy"), 1);
  EXPECT_GE(run.setup.at("validation/pass_k"), run.setup.at("validation/accuracy"));
  // The prompts' answers shifted by one word: nothing is right, and lengths stay.
  config.data.validation[0].answer_template = "x{answer}";
  const RecordedRun wrong = run_training(config);
  EXPECT_EQ(wrong.setup.at("validation/accuracy"), 0);
  EXPECT_EQ(wrong.setup.at("validation/avg_length"), run.setup.at("validation/avg_length"));
  // After a step that ruins the model (learning rate 1) validation sees it, though no refit came
  // since.
  config.data.validation[0].answer_template = std::nullopt;
  config.policy.optimizer.kwargs.lr = 1;
  config.grpo.validation.val_period = 1;
  EXPECT_EQ(run_training(config).steps[0].at("validation/accuracy"), 0);
}

TEST(Validation, TrainingHasTheSameBitsWithoutIt) {
  const TemporaryFolder folder;
  rl::RunConfig config = validated_config(4);
  config.parallel.gtp_remat = 2;
  config.checkpointing.enabled = true;
  config.checkpointing.save_period = 2;
  config.checkpointing.checkpoint_dir = (folder / "with").string();
  const RecordedRun with = run_training(config);
  config.data.validation.clear();
  config.checkpointing.checkpoint_dir = (folder / "without").string();
  const RecordedRun without = run_training(config);
  EXPECT_EQ(with.samples, without.samples);
  for (size_t step = 0; step < 4; ++step) {
    SCOPED_TRACE(fmt::format("step {}", step + 1));
    testing::expect_same_metrics(with.steps[step], without.steps[step]);
  }
}

TEST(Validation, HasTheSameBitsUnderEveryLayoutAndBatchSize) {
  rl::RunConfig config = validated_config(1);
  const auto values = [](const RecordedRun& run) {
    return std::vector<double>{run.setup.at("validation/accuracy"),
                               run.setup.at("validation/avg_length"),
                               run.setup.at("validation/pass_k")};
  };
  const std::vector<double> expected = values(run_training(config));
  for (const auto& [gtp, data] : {std::pair(2, 1), std::pair(3, 1), std::pair(2, 2)}) {
    rl::RunConfig other = config;
    other.parallel.gtp_remat = gtp;
    other.parallel.data = data;
    other.grpo.val_batch_size = 7;
    EXPECT_EQ(values(run_training(other)), expected) << gtp << " x " << data;
  }
}

TEST(Validation, DatasetsAreReportedEach) {
  const TemporaryFolder folder;
  std::ofstream(folder / "none.jsonl") << "{\"question\": \"1+1=\", \"answer\": \"x\"}\n";
  rl::RunConfig config = validated_config(1);
  config.data.validation.push_back({.name = "none", .path = folder / "none.jsonl"});
  const auto setup = run_training(config).setup;
  EXPECT_EQ(setup.at("validation/none/accuracy"), 0);
  EXPECT_GT(setup.at("validation/sums/accuracy"), 0);
  // 20 prompts of one, 1 of the other.
  EXPECT_NEAR(setup.at("validation/accuracy"), setup.at("validation/sums/accuracy") * 20 / 21,
              1e-15);
}

TEST(Validation, ResumedRunsGoOnByteForByte) {
  const TemporaryFolder folder;
  const auto config_of = [&](const char* name, int64_t num_steps) {
    rl::RunConfig config = validated_config(num_steps);
    config.parallel.gtp_remat = 2;
    config.checkpointing.enabled = true;
    config.checkpointing.checkpoint_dir = (folder / name).string();
    config.checkpointing.save_period = 2;
    config.checkpointing.metric_name = "val:accuracy";
    return config;
  };
  const RecordedRun whole = run_training(config_of("whole", 4));
  const RecordedRun first = run_training(config_of("parts", 2));
  const RecordedRun second = run_training(config_of("parts", 4), folder / "parts/step_2");
  testing::expect_same_runs(whole, first, second);
  testing::expect_same_files(folder / "parts/step_4", folder / "whole/step_4");
}

// Step 1 has no validation, step 2 has.
TEST(Validation, GatesLookAtTheStepsThatHaveIt) {
  rl::RunConfig config = validated_config(5);
  rl::GateConfig gate;
  gate.metric = "validation/accuracy";
  gate.min = 2;
  gate.action = "stop";
  config.gates.push_back(gate);
  const RecordedRun run = run_training(config);
  EXPECT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.exit_code, ExitCode::kGate);
}

TEST(Validation, ACheckpointWithoutTheMetricIsSaidToRankLast) {
  const TemporaryFolder folder;
  rl::RunConfig config = validated_config(3);
  config.checkpointing.enabled = true;
  config.checkpointing.checkpoint_dir = (folder / "run").string();
  config.checkpointing.save_period = 3;
  config.checkpointing.metric_name = "validation/accuracy";
  const RecordedRun run = run_training(config);
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_NE(run.warnings[0].find("checkpoint of step 3: the step has no validation/accuracy"),
            std::string::npos)
      << run.warnings[0];
  EXPECT_EQ(run.best_checkpoint, "");
}

}  // namespace
}  // namespace grpo
