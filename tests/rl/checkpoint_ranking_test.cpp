#include "rl/state/checkpoint_ranking.h"

#include <gtest/gtest.h>

#include <limits>

#include "model/core/errors.h"
#include "tests/rl/saved_run.h"

namespace grpo::rl {
namespace {

using Steps = std::vector<int64_t>;

CheckpointingConfig keep(int64_t top_k, int64_t last, bool higher_is_better = true) {
  CheckpointingConfig config;
  config.metric_name = "validation/accuracy";
  config.higher_is_better = higher_is_better;
  config.keep_top_k = top_k;
  config.keep_last = last;
  return config;
}

// Steps 10, 20, ... with these values.
CheckpointRanking ranking_of(const CheckpointingConfig& config, const std::vector<double>& values) {
  CheckpointRanking ranking(config);
  for (size_t i = 0; i < values.size(); ++i) {
    ranking.add(10 * (static_cast<int64_t>(i) + 1), values[i]);
  }
  return ranking;
}

const Steps kFive{10, 20, 30, 40, 50};

TEST(CheckpointRanking, KeepsTheBestAndTheNewest) {
  const std::vector<double> values{0.5, 0.9, 0.1, 0.7, 0.2};
  EXPECT_EQ(ranking_of(keep(2, 0), values).superfluous(kFive), (Steps{10, 30}));
  EXPECT_EQ(ranking_of(keep(2, 0, false), values).superfluous(kFive), (Steps{10, 20, 40}));
  EXPECT_EQ(ranking_of(keep(1, 2), values).superfluous(kFive), (Steps{10, 30}));
  EXPECT_EQ(ranking_of(keep(9, 0), values).superfluous(kFive), Steps{});
  EXPECT_EQ(ranking_of(keep(0, 0), values).superfluous(kFive), Steps{});
  EXPECT_EQ(ranking_of(keep(0, 2), values).superfluous(kFive), (Steps{10, 20, 30}));
}

TEST(CheckpointRanking, OfEqualValuesTheLaterIsBetter) {
  EXPECT_EQ(ranking_of(keep(1, 0), {0.5, 0.5, 0.1}).superfluous({10, 20, 30}), (Steps{10}));
}

TEST(CheckpointRanking, OneWithoutAFiniteValueRanksLast) {
  CheckpointRanking ranking(keep(2, 0));
  ranking.add(10, 0.25);
  ranking.add(20, std::nullopt);
  ranking.add(30, std::numeric_limits<double>::infinity());
  ranking.add(40, 0.125);
  ranking.add(50, std::nullopt);
  EXPECT_EQ(ranking.superfluous(kFive), (Steps{20, 30}));
}

TEST(CheckpointRanking, OnlyCheckpointsThatAreThereTakeAPlace) {
  EXPECT_EQ(ranking_of(keep(1, 0), {0.9, 0.5, 0.1, 0.2}).superfluous({20, 30, 40}), (Steps{30}));
}

// A run that goes on from step 20 has not seen the steps after it.
TEST(CheckpointRanking, AStepIsRankedAnewWithAllAfterIt) {
  CheckpointRanking ranking = ranking_of(keep(1, 0), {0.1, 0.2, 0.9});
  ranking.add(20, 0.05);
  EXPECT_EQ(ranking.best_first(), (std::vector<std::pair<int64_t, double>>{{10, 0.1}, {20, 0.05}}));
}

TEST(CheckpointRanking, GoesOnFromItsState) {
  const CheckpointRanking before = ranking_of(keep(1, 0), {0.1, 0.3, 0.2});
  CheckpointRanking after(keep(1, 0));
  after.restore(before.state_json());
  EXPECT_EQ(after.best_first(), before.best_first());
  EXPECT_EQ(after.state_json(), before.state_json());
  CheckpointingConfig other = keep(1, 0);
  other.metric_name = "train/reward";
  CheckpointRanking fresh(other);
  fresh.restore(before.state_json());
  EXPECT_TRUE(fresh.best_first().empty());
  EXPECT_THROW(fresh.restore("{\"metric\": \"train/reward\", \"values\": 3}"), DataError);
}

// The lowest loss of three steps stays beside the newest checkpoint, also in a run that was
// resumed.
TEST(CheckpointRanking, ARunKeepsItsBest) {
  const testing::TemporaryFolder folder;
  const auto run = [&](int64_t num_steps, const std::optional<std::filesystem::path>& resume_from) {
    RunConfig config = testing::trained_run_config();
    config.algorithm = "sft";
    config.env.rewards.clear();
    config.policy.train_global_batch_size = 8;
    config.policy.optimizer.kwargs.lr = 0.3;  // the first step ruins the model
    config.sft.max_num_steps = num_steps;
    config.data.validation.push_back({.name = "sums", .path = config.data.train.path});
    config.sft.validation.val_period = 1;
    config.checkpointing.enabled = true;
    config.checkpointing.checkpoint_dir = (folder / "run").string();
    config.checkpointing.save_period = 1;
    config.checkpointing.metric_name = "val:loss";
    config.checkpointing.higher_is_better = false;
    config.checkpointing.keep_top_k = 1;
    return testing::run_training(config, resume_from);
  };
  testing::RecordedRun recorded = run(2, std::nullopt);
  const testing::RecordedRun rest = run(5, folder / "run/step_2");
  recorded.steps.insert(recorded.steps.end(), rest.steps.begin(), rest.steps.end());
  ASSERT_EQ(recorded.steps.size(), 5u);
  size_t best = 0;
  for (size_t i = 1; i < 5; ++i) {
    if (recorded.steps[i].at("validation/loss") <= recorded.steps[best].at("validation/loss"))
      best = i;
  }
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run")) {
    left.insert(entry.path().filename().string());
  }
  EXPECT_EQ(left, (std::set<std::string>{fmt::format("step_{}", best + 1), "step_5"}));
  EXPECT_TRUE(rest.best_checkpoint.starts_with(fmt::format("step_{} (validation/loss ", best + 1)))
      << rest.best_checkpoint;
}

}  // namespace
}  // namespace grpo::rl
