// Checkpoints of runs: k + m steps equal k, save, resume, m.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "rl/checkpointing.h"
#include "tests/rl/trained_model.h"

namespace grpo {
namespace {

using testing::RecordedRun;
using testing::run_training;
using testing::trained_run_config;

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "grpo_resume_XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

rl::RunConfig checkpointed_config(const std::filesystem::path& folder, int64_t num_steps) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = num_steps;
  config.parallel.gtp_remat = 2;
  config.policy.train_global_batch_size = 16;
  config.policy.scheduler.warmup_steps = 4;
  config.checkpointing.enabled = true;
  config.checkpointing.checkpoint_dir = folder.string();
  config.checkpointing.save_period = 3;
  rl::GateConfig gate;
  gate.metric = "train/reward";
  gate.reduction = "mean";
  gate.min = -1;
  config.gates.push_back(gate);
  return config;
}

std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    files[entry.path().filename().string()] = text.str();
  }
  return files;
}

bool belongs_to_the_machine(const std::string& name) {
  for (const char* prefix : {"timing/", "performance/", "memory/", "refit/seconds"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

TEST(Resume, SameLayoutGoesOnByteForByte) {
  const ScratchFolder scratch;
  const RecordedRun whole = run_training(checkpointed_config(scratch / "whole", 6));
  const RecordedRun first = run_training(checkpointed_config(scratch / "parts", 3));
  const RecordedRun second =
      run_training(checkpointed_config(scratch / "parts", 6), scratch / "parts/step_3");
  ASSERT_EQ(whole.steps.size(), 6u);
  ASSERT_EQ(first.steps.size(), 3u);
  ASSERT_EQ(second.steps.size(), 3u);
  for (size_t step = 0; step < 6; ++step) {
    const auto& part = step < 3 ? first.steps[step] : second.steps[step - 3];
    for (const auto& [name, value] : whole.steps[step]) {
      if (belongs_to_the_machine(name)) continue;
      EXPECT_EQ(std::bit_cast<uint64_t>(part.at(name)), std::bit_cast<uint64_t>(value))
          << name << " at step " << step + 1 << ": " << part.at(name) << " and " << value;
    }
    const auto& samples = step < 3 ? first.samples[step] : second.samples[step];
    EXPECT_EQ(samples, whole.samples[step]);
  }
  const auto expected = files_of(scratch / "whole/step_6");
  const auto actual = files_of(scratch / "parts/step_6");
  EXPECT_EQ(expected.size(), 6u);  // two layers, embedding, final norm, model config, manifest
  for (const auto& [name, bytes] : expected) EXPECT_TRUE(actual.at(name) == bytes) << name;
}

// The checkpoint of (gtp 2) read at other layouts: the next step's rollout and log-probabilities have the same bits.
TEST(Resume, OtherLayoutsStartFromTheSameBits) {
  const ScratchFolder scratch;
  run_training(checkpointed_config(scratch / "run", 3));
  rl::RunConfig config = checkpointed_config(scratch / "run", 4);
  config.policy.train_global_batch_size = 32;
  config.checkpointing.enabled = false;
  const RecordedRun reference = run_training(config, scratch / "run/step_3");
  for (const auto& [gtp, data] : {std::pair(1, 1), std::pair(3, 1), std::pair(2, 2), std::pair(4, 1)}) {
    config.parallel.gtp_remat = gtp;
    config.parallel.data = data;
    const RecordedRun run = run_training(config, scratch / "run/step_3");
    EXPECT_EQ(run.samples.back(), reference.samples.back());
    for (const char* name : {"train/loss", "train/kl_penalty", "train/approx_entropy", "train/lr"}) {
      EXPECT_EQ(run.steps[0].at(name), reference.steps[0].at(name)) << name << " at gtp " << gtp;
    }
    EXPECT_EQ(run.steps[0].at("train/mismatch_count"), 0.0);
    EXPECT_NEAR(run.steps[0].at("train/grad_norm"), reference.steps[0].at("train/grad_norm"),
                1e-5 * reference.steps[0].at("train/grad_norm"));
  }
}

TEST(Resume, AutoTakesTheNewestFinishedCheckpoint) {
  const ScratchFolder scratch;
  EXPECT_EQ(rl::find_checkpoint("auto", scratch / "none"), std::nullopt);
  for (const char* step : {"step_9", "step_10", "step_11"}) {
    std::filesystem::create_directories(scratch / step);
  }
  for (const char* step : {"step_9", "step_10"}) std::ofstream(scratch / step / "manifest.json") << "{}";
  EXPECT_EQ(rl::find_checkpoint("auto", scratch / ""), scratch / "step_10");
  EXPECT_EQ(rl::find_checkpoint((scratch / "step_9").string(), scratch / ""), scratch / "step_9");
  EXPECT_THROW(rl::find_checkpoint((scratch / "step_11").string(), scratch / ""), ConfigError);
  rl::remove_old_checkpoints(scratch / "", 1);
  EXPECT_FALSE(std::filesystem::exists(scratch / "step_9"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "step_10"));
}

TEST(Resume, AnotherModelOrSeedIsRefused) {
  const ScratchFolder scratch;
  run_training(checkpointed_config(scratch / "run", 1));
  rl::RunConfig config = checkpointed_config(scratch / "run", 2);
  config.grpo.seed += 1;
  EXPECT_THROW(run_training(config, scratch / "run/step_1"), ConfigError);
  config = checkpointed_config(scratch / "run", 2);
  config.policy.model_name = "custom";
  config.policy.model.intermediate_size = 64;
  config.policy.model.max_position_embeddings = 64;
  EXPECT_THROW(run_training(config, scratch / "run/step_1"), DataError);
}

}  // namespace
}  // namespace grpo
