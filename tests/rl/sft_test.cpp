// Runs of `algorithm: sft`: the loss by hand, under every layout, resumed, and as a start for GRPO.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tests/rl/saved_run.h"

namespace grpo {
namespace {

using testing::RecordedRun;
using testing::run_training;
using testing::TemporaryFolder;
using testing::trained_run_config;

// Steps on the sums of the trained model's folder, from its weights.
rl::RunConfig sft_config(int64_t num_steps) {
  rl::RunConfig config = trained_run_config();
  config.algorithm = "sft";
  config.env.rewards.clear();
  config.sft.max_num_steps = num_steps;
  config.policy.train_global_batch_size = 24;
  config.data.validation.push_back({.name = "sums", .path = config.data.train.path});
  return config;
}

void checkpoint_into(rl::RunConfig& config, const std::filesystem::path& folder, int64_t period) {
  config.checkpointing.enabled = true;
  config.checkpointing.checkpoint_dir = folder.string();
  config.checkpointing.save_period = period;
}

// Of all 121 sums of {1..6, 95..99}; a character is a token.
struct SumsTokens {
  double prompt = 0;
  double learnt = 0;  // answers with an end token each
};

SumsTokens count_sums_tokens() {
  SumsTokens tokens;
  for (const int a : {1, 2, 3, 4, 5, 6, 95, 96, 97, 98, 99}) {
    for (const int b : {1, 2, 3, 4, 5, 6, 95, 96, 97, 98, 99}) {
      tokens.prompt += static_cast<double>(fmt::format("{}+{}=", a, b).size());
      tokens.learnt += static_cast<double>(fmt::format("{}", a + b).size()) + 1;
    }
  }
  return tokens;
}

// One batch of all examples in the file's order: the training forward and the scoring forward add
// the same terms.
TEST(Sft, LossIsTheMeanOverLearntTokens) {
  rl::RunConfig config = sft_config(1);
  config.data.train.shuffle = false;
  config.policy.train_global_batch_size = 121;
  config.sft.val_global_batch_size = 121;
  config.sft.validation.val_at_start = true;
  const RecordedRun run = run_training(config);
  const auto& step = run.steps.at(0);
  EXPECT_EQ(step.at("train/loss"), run.setup.at("validation/loss"));
  EXPECT_EQ(step.at("train/global_valid_seqs"), 121);
  const SumsTokens tokens = count_sums_tokens();
  EXPECT_EQ(step.at("train/global_valid_toks"), tokens.learnt);
  EXPECT_EQ(step.at("train/total_num_tokens"), tokens.prompt + tokens.learnt);
  EXPECT_NEAR(step.at("train/mean_prompt_length"), tokens.prompt / 121, 1e-12);
  EXPECT_GT(step.at("train/grad_norm"), 0);
}

TEST(Sft, LearnsWithoutAGenerationModel) {
  rl::RunConfig config = sft_config(12);
  config.policy.model_name = "custom";  // random weights
  config.parallel.gtp_remat = 2;
  config.sft.validation = {.val_period = 6, .val_at_start = true, .val_at_end = false};
  const RecordedRun run = run_training(config);
  ASSERT_EQ(run.steps.size(), 12u);
  EXPECT_LT(run.steps[11].at("validation/loss"), run.steps[5].at("validation/loss"));
  EXPECT_LT(run.steps[5].at("validation/loss"), run.setup.at("validation/loss"));
  EXPECT_FALSE(run.steps[4].contains("validation/loss"));
  for (const auto& step : run.steps) {
    EXPECT_GT(step.at("gtp/gathers"), 0);
    EXPECT_GT(step.at("gtp/reduce_scattered_bytes"), 0);
    EXPECT_FALSE(step.contains("memory/generation/peak_bytes"));
    EXPECT_FALSE(step.contains("refit/bytes"));
  }
  EXPECT_TRUE(run.samples.empty());
}

class SftLayouts : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(SftLayouts, LossesHaveTheSameBits) {
  rl::RunConfig config = sft_config(1);
  config.policy.sequence_packing.train_mb_tokens = 32;  // several micro-batches a rank
  config.policy.sequence_packing.train_mb_multiple = 4;
  config.sft.val_global_batch_size = 50;
  config.sft.validation.val_at_start = true;
  static const RecordedRun reference = run_training(config);
  config.parallel.gtp_remat = GetParam().first;
  config.parallel.data = GetParam().second;
  const RecordedRun run = run_training(config);
  EXPECT_EQ(run.setup.at("validation/loss"), reference.setup.at("validation/loss"));
  for (const char* name :
       {"train/loss", "train/global_valid_toks", "train/total_num_tokens", "train/lr"}) {
    EXPECT_EQ(run.steps[0].at(name), reference.steps[0].at(name)) << name;
  }
  const double norm = reference.steps[0].at("train/grad_norm");
  EXPECT_NEAR(run.steps[0].at("train/grad_norm"), norm,
              config.parallel.data == 1 ? 0.0 : 1e-5 * norm);
}

INSTANTIATE_TEST_SUITE_P(GtpAndDp, SftLayouts,
                         ::testing::Values(std::pair(2, 1), std::pair(3, 1), std::pair(2, 2),
                                           std::pair(1, 3)));

TEST(Sft, EpochsBoundTheSteps) {
  rl::RunConfig config = sft_config(100);
  config.sft.max_num_epochs = 1;
  config.policy.train_global_batch_size = 40;  // 121 examples hold 3
  EXPECT_EQ(run_training(config).steps.size(), 3u);
  config.policy.train_global_batch_size = 122;
  EXPECT_THROW(run_training(config), ConfigError);
}

TEST(Sft, ValidationBatchesBoundTheExamples) {
  rl::RunConfig config = sft_config(1);
  config.sft.validation.val_at_start = true;
  config.sft.val_global_batch_size = 11;
  config.sft.val_batches = 1;
  const double first = run_training(config).setup.at("validation/loss");
  config.sft.val_batches = 11;
  const double all = run_training(config).setup.at("validation/loss");
  EXPECT_NE(first, all);
  config.sft.val_batches = 0;
  EXPECT_EQ(run_training(config).setup.at("validation/loss"), all);
}

TEST(Sft, EachOfSeveralDatasetsIsReported) {
  const TemporaryFolder folder;
  std::ofstream(folder / "one.jsonl") << "{\"q\": \"1+1=\", \"a\": \"2\"}\n";
  rl::RunConfig config = sft_config(1);
  config.sft.validation.val_at_start = true;
  config.data.validation.push_back({.name = "one",
                                    .path = folder / "one.jsonl",
                                    .prompt_template = "{q}",
                                    .response_template = "{a}"});
  const auto setup = run_training(config).setup;
  const double tokens = count_sums_tokens().learnt;
  const double sums = setup.at("validation/sums/loss");
  const double one = setup.at("validation/one/loss");
  EXPECT_NE(sums, one);
  EXPECT_NEAR(setup.at("validation/loss"), (sums * tokens + one * 2) / (tokens + 2), 1e-12);
}

TEST(Sft, SameLayoutGoesOnByteForByte) {
  const TemporaryFolder folder;
  const auto config_of = [&](const char* name, int64_t num_steps) {
    rl::RunConfig config = sft_config(num_steps);
    config.parallel.gtp_remat = 2;
    config.policy.scheduler.warmup_steps = 4;
    config.sft.validation.val_period = 2;
    config.sft.early_stop.metric = "validation/loss";
    config.sft.early_stop.higher_is_better = false;
    config.checkpointing.metric_name = "validation/loss";
    config.checkpointing.higher_is_better = false;
    checkpoint_into(config, folder / name, 2);
    return config;
  };
  const RecordedRun whole = run_training(config_of("whole", 6));
  const RecordedRun first = run_training(config_of("parts", 4));
  const RecordedRun second = run_training(config_of("parts", 6), folder / "parts/step_4");
  testing::expect_same_runs(whole, first, second);
  testing::expect_same_files(folder / "parts/step_6", folder / "whole/step_6");
  EXPECT_EQ(second.best_checkpoint, whole.best_checkpoint);

  rl::RunConfig other = config_of("parts", 5);
  other.checkpointing.enabled = false;
  other.parallel.gtp_remat = 1;
  other.parallel.data = 3;
  const RecordedRun moved = run_training(other, folder / "parts/step_4");
  EXPECT_EQ(moved.steps[0].at("train/loss"), whole.steps[4].at("train/loss"));
  EXPECT_EQ(moved.steps[0].at("train/lr"), whole.steps[4].at("train/lr"));
}

// The same supervised steps as a warm start and as a run of their own lead GRPO to the same bits.
TEST(Sft, StartsGrpo) {
  const TemporaryFolder folder;
  rl::RunConfig sft = sft_config(3);
  sft.parallel.gtp_remat = 2;
  sft.policy.optimizer.kwargs.lr = 2e-3;
  checkpoint_into(sft, folder / "sft", 3);
  run_training(sft);
  rl::RunConfig warm = trained_run_config();
  warm.grpo.max_num_steps = 1;
  warm.parallel.gtp_remat = 2;
  const RecordedRun cold_run = run_training(warm);
  rl::RunConfig loaded = warm;
  warm.warm_start = {.checkpoint = "", .num_steps = 3, .global_batch_size = 24, .lr = 2e-3};
  const RecordedRun warm_run = run_training(warm);
  loaded.warm_start.checkpoint = (folder / "sft").string();
  const RecordedRun loaded_run = run_training(loaded);
  testing::expect_same_metrics(loaded_run.steps.at(0), warm_run.steps.at(0));
  EXPECT_EQ(loaded_run.samples, warm_run.samples);
  EXPECT_NE(cold_run.steps[0].at("refit/fingerprint"), warm_run.steps[0].at("refit/fingerprint"));
}

TEST(Sft, CheckpointsOfAnotherAlgorithmAreNotResumed) {
  const TemporaryFolder folder;
  rl::RunConfig sft = sft_config(1);
  checkpoint_into(sft, folder / "sft", 1);
  run_training(sft);
  rl::RunConfig config = trained_run_config();
  EXPECT_THROW(run_training(config, folder / "sft/step_1"), ConfigError);
  config.warm_start.checkpoint = (folder / "none").string();
  EXPECT_THROW(run_training(config), ConfigError);
}

TEST(Sft, AnExampleThatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  std::ofstream(folder / "long.jsonl")
      << "{\"question\": \"1+1=\", \"answer\": \"2\"}\n"
      << "{\"question\": \"1+1=\", \"answer\": \"222222222222222\"}\n";
  rl::RunConfig config = sft_config(1);
  config.data.train.path = (folder / "long.jsonl").string();
  try {
    run_training(config);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("long.jsonl:2: the example has 20 tokens"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace grpo
