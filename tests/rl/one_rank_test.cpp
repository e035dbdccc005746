// Whole runs of one rank on the tests' device, a GPU included: warm start, rollouts, scoring,
// updates, refit, checkpoints.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/app/scratch_folder.h"
#include "tests/rl/saved_run.h"
#include "tests/rl/trained_model.h"
#include "tests/test_device.h"

namespace grpo {
namespace {

using testing::belongs_to_the_machine;
using testing::RecordedRun;
using testing::run_training;

struct RunCase {
  const char* precision;
  bool several_updates;  // scores before them, a filtered distribution and a two-pass loss
};

rl::RunConfig config_of(const RunCase& run_case) {
  rl::RunConfig config = testing::trained_run_config();
  config.policy.precision = run_case.precision;
  config.grpo.max_num_steps = 4;
  config.warm_start = {.num_steps = 3, .global_batch_size = 16, .lr = 1e-4};
  if (run_case.several_updates) {
    config.policy.train_global_batch_size = 16;
    config.policy.generation.top_k = 12;
    config.policy.generation.top_p = 0.9;
    config.policy.generation.temperature = 0.7;
  }
  return config;
}

// The last steps of two runs.
void expect_same_ends(const RecordedRun& actual, const RecordedRun& expected, size_t num_steps) {
  ASSERT_GE(actual.steps.size(), num_steps);
  ASSERT_GE(expected.steps.size(), num_steps);
  for (size_t back = 1; back <= num_steps; ++back) {
    SCOPED_TRACE(fmt::format("step {} from the end", back));
    const auto& values = actual.steps[actual.steps.size() - back];
    for (const auto& [name, value] : expected.steps[expected.steps.size() - back]) {
      if (belongs_to_the_machine(name)) continue;
      EXPECT_EQ(values.at(name), value) << name;
    }
    EXPECT_EQ(actual.samples[actual.samples.size() - back],
              expected.samples[expected.samples.size() - back]);
  }
}

std::string bytes_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

class OneRank : public ::testing::TestWithParam<RunCase> {};

INSTANTIATE_TEST_SUITE_P(Runs, OneRank,
                         ::testing::Values(RunCase{"float32", false}, RunCase{"float32", true},
                                           RunCase{"bfloat16", false}, RunCase{"bfloat16", true}),
                         [](const auto& param_info) {
                           return std::string(param_info.param.precision) +
                                  (param_info.param.several_updates ? "_several_updates"
                                                                    : "_one_update");
                         });

TEST_P(OneRank, GenerationAndTrainingGiveTheSameBits) {
  const RecordedRun run = run_training(config_of(GetParam()));
  ASSERT_EQ(run.steps.size(), 4u);
  for (size_t step = 0; step < run.steps.size(); ++step) {
    SCOPED_TRACE(fmt::format("step {}", step + 1));
    const auto& metrics = run.steps[step];
    EXPECT_EQ(metrics.at("train/token_mult_prob_error"), 1.0);
    EXPECT_EQ(metrics.at("train/mismatch_count"), 0.0);
    EXPECT_EQ(metrics.at("train/cut_mismatch_count"), 0.0);
    EXPECT_GT(metrics.at("train/mismatch_tokens_checked"), 0.0);
    EXPECT_EQ(metrics.at("train/mismatch_tokens_checked"), metrics.at("train/global_valid_toks"));
    EXPECT_GT(metrics.at("train/grad_norm"), 0.0);
    EXPECT_GT(metrics.at("refit/changed_elements"), 0.0);
    EXPECT_EQ(metrics.at("refit/fingerprint_ok"), 1.0);
  }
}

TEST_P(OneRank, AResumedRunGoesOnByteForByte) {
  const testing::ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path();
  rl::RunConfig config = config_of(GetParam());
  config.checkpointing.enabled = true;
  config.checkpointing.save_period = 2;
  config.checkpointing.checkpoint_dir = (folder / "whole").string();
  const RecordedRun whole = run_training(config);
  config.checkpointing.checkpoint_dir = (folder / "parts").string();
  const RecordedRun resumed = run_training(config, folder / "whole/step_2");
  expect_same_ends(resumed, whole, 2);
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "whole/step_4")) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto other = folder / "parts/step_4" / entry.path().filename();
    EXPECT_EQ(bytes_of(entry.path()), bytes_of(other)) << entry.path().filename();
    ++num_files;
  }
  EXPECT_GT(num_files, 0);
}

// The fake device computes what the CPU computes: the loop around the operators must not know the
// difference.
TEST_P(OneRank, TheFakeDeviceGivesTheCpusRun) {
  if (testing::test_device().kind == DeviceKind::kCpu || testing::is_on_gpu()) {
    GTEST_SKIP() << "for the fake device";
  }
  const RecordedRun on_device = run_training(config_of(GetParam()));
  const RecordedRun on_cpu = run_training(config_of(GetParam()), std::nullopt, Device::cpu());
  expect_same_ends(on_device, on_cpu, 4);
}

}  // namespace
}  // namespace grpo
