#include "model/core/use_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model_fixture.h"

namespace grpo {
namespace {

TEST(UseSchedule, CountsReadsAndContributionsOfAParameter) {
  const UseSchedule schedule({{0, UsePhase::kForward, true, false},
                              {1, UsePhase::kForward, true, false},
                              {0, UsePhase::kBackward, true, true},
                              {0, UsePhase::kBackward, false, true}});
  EXPECT_EQ(testing::num_reads(schedule, 0), 2);
  EXPECT_EQ(schedule.num_contributions(0), 2);
  EXPECT_EQ(testing::num_reads(schedule, 1), 1);
  EXPECT_EQ(schedule.num_contributions(1), 0);
  EXPECT_EQ(testing::num_reads(schedule, 2), 0);
}

// The schedules of a whole model.
class TransformerSchedules : public ::testing::TestWithParam<bool> {
 protected:
  TransformerSchedules()
      : config(testing::even_config(GetParam())), model(rank, config, testing::solo_groups()) {}

  testing::RankContext rank;
  model::ModelConfig config;
  testing::TestModel model;
};
INSTANTIATE_TEST_SUITE_P(Tied, TransformerSchedules, ::testing::Bool());

TEST_P(TransformerSchedules, ScoringReadsEveryParameterOnceAndATiedMatrixTwice) {
  const UseSchedule& schedule = model.transformer.score_schedule();
  for (size_t i = 0; i < model.store.specs().size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    const bool is_tied_matrix = GetParam() && id == model.parameters.embedding;
    EXPECT_EQ(testing::num_reads(schedule, id), is_tied_matrix ? 2 : 1)
        << model.store.specs()[i].name;
    EXPECT_EQ(schedule.num_contributions(id), 0);
  }
}

TEST_P(TransformerSchedules, TrainingGivesEveryParameterAGradient) {
  for (const bool token_local : {true, false}) {
    const UseSchedule& schedule = model.transformer.train_schedule(token_local);
    for (size_t i = 0; i < model.store.specs().size(); ++i) {
      const auto id = static_cast<ParameterId>(i);
      const bool is_tied_matrix = GetParam() && id == model.parameters.embedding;
      EXPECT_EQ(schedule.num_contributions(id), is_tied_matrix ? 2 : 1)
          << model.store.specs()[i].name;
    }
    // The head in one pass reads its weight once, in two passes twice.
    const int head_reads = token_local ? 1 : 2;
    EXPECT_EQ(testing::num_reads(schedule, model.parameters.head),
              head_reads + (GetParam() ? 1 : 0));
    EXPECT_EQ(testing::num_reads(schedule, model.parameters.layers[0].down_weight), 2);
    EXPECT_EQ(testing::num_reads(schedule, model.parameters.layers[0].qkv_bias), 1);
  }
}

TEST_P(TransformerSchedules, BackwardIsForwardMirrored) {
  const std::vector<ParameterUse>& uses = model.transformer.train_schedule(true).uses();
  std::vector<ParameterId> forward;
  std::vector<ParameterId> backward;
  for (const ParameterUse& use : uses) {
    (use.phase == UsePhase::kForward ? forward : backward).push_back(use.parameter);
  }
  forward.push_back(model.parameters.head);  // reads and contributes in one use
  std::reverse(backward.begin(), backward.end());
  ASSERT_EQ(forward.size(), backward.size());
  for (size_t i = 0; i < forward.size(); ++i) EXPECT_EQ(forward[i], backward[i]) << "use " << i;
  EXPECT_EQ(uses.front().parameter, model.parameters.embedding);
  EXPECT_EQ(uses.back().parameter, model.parameters.embedding);
}

}  // namespace
}  // namespace grpo
