// Keys that one algorithm reads and the other does not, and rules between the sections of
// validation, early stop and ranked checkpoints.
#include <gtest/gtest.h>

#include "rl/config/resolve_config.h"
#include "rl/config/run_config.h"
#include "tests/app/bad_config.h"

namespace grpo::app {
namespace {

constexpr const char* kSft =
    "algorithm: sft\n"
    "policy: {model_name: custom, train_global_batch_size: 4}\n"
    "data: {train: {path: d.jsonl, response_template: \"{a}\"}}\n";

std::string sft_with(const std::string& more) { return kSft + more; }

class UnusedKey : public ::testing::TestWithParam<BadCase> {};

TEST_P(UnusedKey, IsRefused) { expect_message(GetParam()); }

std::vector<BadCase> unused_keys() {
  const std::string sft = ", but nothing reads it: algorithm is sft";
  const std::string no_data = ", but nothing reads it: data.validation is empty";
  return {
      {"grpo", sft_with("grpo: {seed: 7}\n"), {}, "c.yaml:4:8: grpo.seed is 7" + sft},
      {"loss",
       sft_with("loss_fn: {ratio_clip_max: 0.5}\n"),
       {},
       "c.yaml:4:11: loss_fn.ratio_clip_max is 0.5" + sft},
      {"rewards",
       sft_with("env:\n  rewards: [{name: a}]\n"),
       {},
       "c.yaml:5:3: env.rewards is given" + sft},
      {"generation",
       sft_with(""),
       {"policy.generation.top_k=3"},
       "override policy.generation.top_k=3: policy.generation.top_k is 3" + sft},
      {"answers",
       sft_with(""),
       {"data.train.answer_template={b}"},
       "override data.train.answer_template={b}: data.train.answer_template is \"{b}\"" + sft},
      {"warm_start",
       sft_with("warm_start: {num_steps: 3}\n"),
       {},
       "c.yaml:4:14: warm_start.num_steps is 3" + sft},
      {"fault",
       sft_with("numerics: {inject_fault: stale_kv}\n"),
       {},
       "c.yaml:4:12: numerics.inject_fault is stale_kv" + sft},
      {"sft",
       with("sft: {seed: 7}\n"),
       {},
       "c.yaml:3:7: sft.seed is 7, but nothing reads it: algorithm is grpo"},
      {"period_without_data",
       with("grpo: {val_period: 7}\n"),
       {},
       "c.yaml:3:8: grpo.val_period is 7" + no_data},
      {"batches_without_data",
       sft_with("sft: {val_batches: 7}\n"),
       {},
       "c.yaml:4:7: sft.val_batches is 7" + no_data},
      {"patience_without_metric",
       with("grpo: {early_stop: {patience: 7}}\n"),
       {},
       "c.yaml:3:21: grpo.early_stop.patience is 7, but nothing reads it: grpo.early_stop.metric "
       "is empty"},
      {"direction_without_metric",
       with("checkpointing: {higher_is_better: false}\n"),
       {},
       "c.yaml:3:17: checkpointing.higher_is_better is false, but nothing reads it: "
       "checkpointing.metric_name is null"},
  };
}

INSTANTIATE_TEST_SUITE_P(Keys, UnusedKey, ::testing::ValuesIn(unused_keys()), case_name);

// What resolve() says about a config; "" when it is right.
std::string resolve_error(const std::string& text, const std::vector<std::string>& overrides = {}) {
  rl::RunConfig config = load(text, overrides);
  try {
    rl::resolve(config, 1);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

const std::string kGrpo = std::string(kLeast) + "env: {rewards: [{}]}\n";

TEST(AlgorithmRules, SftNeedsABatchAndResponses) {
  EXPECT_EQ(resolve_error(kSft), "");
  EXPECT_NE(resolve_error(kSft, {"policy.train_global_batch_size=0"}).find("at least 1"),
            std::string::npos);
  EXPECT_NE(resolve_error(kSft, {"data.train.response_template=''"})
                .find("nothing for algorithm: sft to learn"),
            std::string::npos);
}

TEST(AlgorithmRules, ValidationNeedsAPeriodAndNames) {
  const std::string data =
      "policy: {model_name: custom}\nenv: {rewards: [{}]}\n"
      "data:\n  train: {path: d}\n  validation: [{path: a}, {path: b}]\n";
  EXPECT_NE(resolve_error(data + "grpo: {val_period: 0}\n").find("nothing reads it"),
            std::string::npos);
  EXPECT_EQ(
      resolve_error(data),
      "data.validation.1.name is 'validation', as that of data.validation.0; give each its own");
  EXPECT_EQ(resolve_error(data, {"data.validation.1.name=other"}), "");
}

TEST(AlgorithmRules, MetricsMayHaveNemoRlsNames) {
  const std::string data =
      "policy: {model_name: custom}\nenv: {rewards: [{}]}\ndata:\n  train: {path: d}\n"
      "  validation: [{path: a}]\ngrpo: {val_period: 1}\n";
  for (const auto& [given, ours] :
       {std::pair{"val:accuracy", "validation/accuracy"}, std::pair{"train:reward", "train/reward"},
        std::pair{"train/reward", "train/reward"}}) {
    rl::RunConfig config = load(data, {fmt::format("checkpointing.metric_name={}", given),
                                       fmt::format("grpo.early_stop.metric={}", given)});
    rl::resolve(config, 2);
    EXPECT_EQ(config.checkpointing.metric_name, ours);
    EXPECT_EQ(config.grpo.early_stop.metric, ours);
  }
}

TEST(AlgorithmRules, NamedMetricsExist) {
  EXPECT_EQ(resolve_error(kGrpo, {"grpo.early_stop.metric=train/rewards"}),
            "grpo.early_stop.metric is 'train/rewards', which this run does not have; nearest: "
            "train/reward");
  EXPECT_EQ(resolve_error(kGrpo, {"checkpointing.metric_name=val:accuracy"}).substr(0, 61),
            "checkpointing.metric_name is 'validation/accuracy', which thi");
  EXPECT_EQ(resolve_error(kGrpo, {"checkpointing.metric_name=train:reward"}), "");
  EXPECT_EQ(resolve_error(kSft, {"sft.early_stop.metric=train/loss"}), "");
  EXPECT_NE(resolve_error(kSft, {"sft.early_stop.metric=train/reward"}), "");
}

TEST(AlgorithmRules, TopKNeedsAMetric) {
  EXPECT_NE(
      error_of(with("checkpointing: {keep_top_k: 2}\n")).find("needs checkpointing.metric_name"),
      std::string::npos);
}

}  // namespace
}  // namespace grpo::app
