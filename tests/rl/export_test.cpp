// A run's checkpoint, exported and scored by the program, gives the log-probabilities of the run's
// own policy.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/commands/export_command.h"
#include "app/commands/generate_command.h"
#include "app/commands/score_command.h"
#include "app/commands/train_command.h"
#include "model/core/errors.h"
#include "rl/config/resolve_config.h"
#include "rl/loop/sequence_scorer.h"
#include "rl/models/policy_models.h"
#include "tests/model_fixture.h"
#include "tests/rl/trained_model.h"
#include "tests/run_ranks.h"
#include "tests/temporary_folder.h"

namespace grpo {
namespace {

using Scores = std::vector<std::vector<float>>;

class ExportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = testing::trained_run_config();
    config_.grpo.max_num_steps = 2;
    config_.parallel.gtp_remat = 2;
    config_.policy.train_global_batch_size = 32;
    config_.checkpointing.enabled = true;
    config_.checkpointing.checkpoint_dir = (folder_ / "checkpoints").string();
    testing::run_training(config_);
    std::ofstream(folder_ / "in.jsonl") << "{\"text\":\"1+2=3\"}\n{\"text\":\"97+96=193\"}\n";
  }

  std::vector<nlohmann::json> score(const std::string& model) const {
    const std::string output = (folder_ / "out.jsonl").string();
    EXPECT_EQ(app::run_score({.model_dir = model,
                              .input_path = (folder_ / "in.jsonl").string(),
                              .output_path = output,
                              .num_local_ranks = 1,
                              .overrides = {}}),
              0);
    std::vector<nlohmann::json> lines;
    std::ifstream file(output);
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  // Of the policy in the checkpoint, sharded over two ranks as the run had it.
  Scores scores_of_run(const std::vector<nlohmann::json>& lines) const {
    Scores scores;
    rl::RunConfig config = config_;
    rl::resolve(config, 2);
    testing::run_ranks(2, [&](parallel::World& world) {
      testing::RankContext rank;
      const auto tokenizer = model::load_tokenizer(config.policy.tokenizer.name);
      rl::PolicyModels models(config, rl::open_model(config.policy, *tokenizer), world,
                              rank.allocator);
      parallel::CheckpointContent content;
      models.add_to(content);
      parallel::sort_content(content);
      parallel::load_checkpoint(folder_ / "checkpoints/step_2", content,
                                parallel::Surplus::kIgnore);
      models.mark_weights_changed();
      std::vector<rl::RolloutSequence> sequences;
      for (const nlohmann::json& line : lines) {
        const auto tokens = line["tokens"].get<std::vector<int32_t>>();
        rl::RolloutSequence& sequence = sequences.emplace_back();
        sequence.prompt_tokens.assign(tokens.begin(), tokens.begin() + 1);
        sequence.response_tokens.assign(tokens.begin() + 1, tokens.end());
      }
      const auto own = rl::score_sequences(models.policy(), models.groups(), sequences,
                                           {.inv_temperature = 1.0f,
                                            .max_tokens = 64,
                                            .applies_filter = false,
                                            .filter_check = nullptr},
                                           rank.ctx);
      if (world.rank() == 0) scores = own.unfiltered;
    });
    return scores;
  }

  const testing::TemporaryFolder folder_;
  rl::RunConfig config_;
};

TEST_F(ExportTest, ScoresToTheRunsOwnBits) {
  const std::string exported = (folder_ / "exported").string();
  ASSERT_EQ(
      app::run_export({.checkpoint = (folder_ / "checkpoints").string(), .output_dir = exported}),
      0);
  const auto lines = score(exported);
  const Scores expected = scores_of_run(lines);
  ASSERT_EQ(lines.size(), 2u);
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto logprobs = lines[i]["logprobs"].get<std::vector<float>>();
    ASSERT_EQ(logprobs.size(), expected[i].size());
    ASSERT_GT(logprobs.size(), 3u);
    for (size_t t = 0; t < logprobs.size(); ++t) {
      EXPECT_EQ(std::bit_cast<uint32_t>(logprobs[t]), std::bit_cast<uint32_t>(expected[i][t]))
          << i << ", " << t;
    }
  }
  // The two steps moved the weights away from those that the run began with.
  std::filesystem::copy_file(config_.policy.tokenizer.name, folder_ / "tokenizer.model");
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(testing::trained_model_directory() / name, folder_ / name);
  }
  EXPECT_NE(score(folder_.path().string())[0]["logprobs"], lines[0]["logprobs"]);
}

TEST_F(ExportTest, ADamagedCheckpointIsRefused) {
  const std::filesystem::path weights = folder_ / "checkpoints/step_2/final_norm.safetensors";
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-3, std::ios::end);
  file.put('\x7f');
  file.close();
  EXPECT_THROW(app::run_export({.checkpoint = (folder_ / "checkpoints").string(),
                                .output_dir = (folder_ / "exported").string()}),
               DataError);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "exported"));
}

}  // namespace
}  // namespace grpo
