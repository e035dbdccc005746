#include "app/config/config_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "app/config/yaml_config_reader.h"
#include "app/text/scalar_text.h"
#include "tests/app/scratch_folder.h"

namespace grpo::app {
namespace {

rl::RunConfig read_back(const std::string& text) {
  const testing::ScratchFolder folder;
  return load_run_config(folder.write("c.yaml", text), {});
}

// A config in which no field has its default.
rl::RunConfig unusual_config() {
  rl::RunConfig config;
  config.policy.model_name = "custom";
  config.policy.model.rms_norm_eps = 0.1 + 0.2;
  config.policy.tokenizer.name = "a: b # c";
  config.policy.precision = "float32";
  config.policy.optimizer.kwargs.betas = {1.0 / 3.0, 0.0};
  config.policy.optimizer.kwargs.lr = 1.1754943508222876e-38;
  config.policy.generation.stop_token_ids = {0, 151643};
  config.policy.generation.ignore_eos = true;
  config.data.train.path = "d.jsonl";
  config.data.train.prompt_template = "Q: \"{question}\"\n\tA:\\ \x01 \xC3\xA9 true";
  config.data.train.answer_template = "yes";
  config.loss_fn.ratio_clip_c = 3.0;
  config.loss_fn.kl_input_clamp_value = std::nullopt;
  config.grpo.seed = INT64_MAX;
  config.grpo.normalize_rewards = false;
  config.logger.log_dir = "/x/y-z_1";
  config.numerics.mode = "fast";
  config.env.rewards.resize(2);
  config.env.rewards[1].name = "second";
  config.env.rewards[1].type = "pattern";
  config.env.rewards[1].pattern = R"(#### (\d+)|'x')";
  config.gates.resize(1);
  config.gates[0].metric = "train/loss";
  config.gates[0].min = -1.25e-38;
  return config;
}

TEST(ConfigWriter, ReadsBackToTheSameConfig) {
  const rl::RunConfig config = unusual_config();
  const std::string text = config_to_yaml(config);
  const rl::RunConfig back = read_back(text);
  EXPECT_EQ(config_to_yaml(back), text);
  EXPECT_EQ(back.policy.model.rms_norm_eps, config.policy.model.rms_norm_eps);
  EXPECT_EQ(back.policy.tokenizer.name, config.policy.tokenizer.name);
  EXPECT_EQ(back.policy.precision, config.policy.precision);
  EXPECT_EQ(back.policy.optimizer.kwargs.betas, config.policy.optimizer.kwargs.betas);
  EXPECT_EQ(back.policy.optimizer.kwargs.lr, config.policy.optimizer.kwargs.lr);
  EXPECT_EQ(back.policy.generation.stop_token_ids, config.policy.generation.stop_token_ids);
  EXPECT_TRUE(back.policy.generation.ignore_eos);
  EXPECT_EQ(back.data.train.prompt_template, config.data.train.prompt_template);
  EXPECT_EQ(back.data.train.answer_template, "yes");
  EXPECT_EQ(back.loss_fn.ratio_clip_c, 3.0);
  EXPECT_EQ(back.loss_fn.kl_input_clamp_value, std::nullopt);
  EXPECT_EQ(back.grpo.seed, INT64_MAX);
  EXPECT_FALSE(back.grpo.normalize_rewards);
  ASSERT_EQ(back.env.rewards.size(), 2u);
  EXPECT_EQ(back.env.rewards[1].pattern, config.env.rewards[1].pattern);
  ASSERT_EQ(back.gates.size(), 1u);
  EXPECT_EQ(back.gates[0].min, -1.25e-38);
  EXPECT_EQ(back.gates[0].max, std::nullopt);
}

TEST(ConfigWriter, WritesNumbersThatEveryYamlReaderTakesForNumbers) {
  EXPECT_EQ(write_number(1.0), "1.0");
  EXPECT_EQ(write_number(1e-6), "1.0e-06");
  EXPECT_EQ(write_number(0.1), "0.1");
  EXPECT_EQ(write_number(1.5e300), "1.5e+300");
  for (const double value :
       {1e-6, 0.1 + 0.2, 1e22, -0.0, 5e-324, std::numeric_limits<double>::max()}) {
    const std::optional<double> back = parse_number(write_number(value));
    ASSERT_TRUE(back.has_value()) << write_number(value);
    EXPECT_EQ(*back, value);
    EXPECT_EQ(std::signbit(*back), std::signbit(value));
  }
}

TEST(ConfigWriter, QuotesTextThatIsNotPlain) {
  EXPECT_EQ(write_text("custom"), "custom");
  EXPECT_EQ(write_text("configs/data/a.jsonl"), "configs/data/a.jsonl");
  for (const char* text :
       {"", "true", "No", "null", "~", "1e3", "123", "-", "a: b", "# x", "{q}", "x "}) {
    EXPECT_EQ(write_text(text), std::string("\"") + text + "\"");
  }
}

}  // namespace
}  // namespace grpo::app
