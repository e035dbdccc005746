#include "app/config/config_overrides.h"

#include <gtest/gtest.h>

#include "tests/app/bad_config.h"

namespace grpo::app {
namespace {

class BadOverride : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadOverride, GivesOneLineThatNamesTheWordAndRemedy) { expect_message(GetParam()); }

std::vector<BadCase> bad_overrides() {
  const std::string gates = with("gates: [{metric: train/loss}]\n");
  return {
      {"no_equals",
       with(""),
       {"grpo.seed"},
       "'grpo.seed' is not an override; allowed: key.path=value"},
      {"no_key", with(""), {"=5"}, "'=5' is not an override; allowed: key.path=value"},
      {"unknown",
       with(""),
       {"grpo.sed=1"},
       "override grpo.sed=1: grpo.sed is not a key; nearest: grpo.seed"},
      {"hydra_plus",
       with(""),
       {"+grpo.seed=1"},
       "override +grpo.seed=1: +grpo is not a key; nearest: grpo"},
      {"empty_part",
       with(""),
       {"grpo..seed=1"},
       "override grpo..seed=1: grpo. is not a key; nearest: grpo.seed"},
      {"whole_section",
       with(""),
       {"grpo={seed: 1}"},
       "override grpo={seed: 1}: grpo is a section; override its keys one by one, like "
       "grpo.num_prompts_per_step=..."},
      {"below_a_value",
       with(""),
       {"grpo.seed.x=1"},
       "override grpo.seed.x=1: grpo.seed has no keys; allowed: an integer"},
      {"wrong_type",
       with(""),
       {"grpo.seed=abc"},
       "override grpo.seed=abc: grpo.seed is 'abc'; allowed: an integer"},
      {"wrong_choice",
       with(""),
       {"numerics.mode=exakt"},
       "override numerics.mode=exakt: numerics.mode is 'exakt'; allowed: exact, fast"},
      {"null",
       with(""),
       {"logger.log_dir="},
       "override logger.log_dir=: logger.log_dir is null; allowed: text ('' for none)"},
      {"broken_yaml",
       with(""),
       {"policy.generation.stop_token_ids=[1"},
       "override policy.generation.stop_token_ids=[1: a list or a mapping stands where a key is "
       "expected "
       "(an open bracket?)"},
      {"element_of_none",
       with(""),
       {"gates.0.max=1"},
       "override gates.0.max=1: gates has 0 elements, '0' is none of them; allowed: gates=[...]"},
      {"element_too_far",
       gates,
       {"gates.1.max=1"},
       "override gates.1.max=1: gates has 1 elements, '1' is none of them; allowed: 0 to 0"},
      {"element_by_name",
       gates,
       {"gates.x.max=1"},
       "override gates.x.max=1: gates has 1 elements, 'x' is none of them; allowed: 0 to 0"},
      {"element_key",
       gates,
       {"gates.0.maxx=1"},
       "override gates.0.maxx=1: gates.0.maxx is not a key; nearest: gates.[].max"},
      {"whole_element",
       gates,
       {"gates.0={}"},
       "override gates.0={}: gates.0 is a section; override its keys one by one, like "
       "gates.0.metric=..."},
      {"unknown_key_in_a_new_list",
       with(""),
       {"gates=[{metrik: train/loss}]"},
       "override gates=[{metrik: train/loss}]: gates.0.metrik is not a key; nearest: "
       "gates.[].metric"},
      {"section_of_the_file_is_a_word",
       with("grpo: 5\n"),
       {"grpo.seed=1"},
       "c.yaml:3:7: grpo is '5'; allowed: a mapping"},
  };
}
INSTANTIATE_TEST_SUITE_P(Words, BadOverride, ::testing::ValuesIn(bad_overrides()), case_name);

TEST(ConfigOverrides, AreAppliedInOrder) {
  const rl::RunConfig config = load(
      with("grpo: {seed: 1}\ngates: [{metric: a, max: 2}, {metric: b, max: 3}]\n"),
      {"grpo.seed=2", "grpo.seed=3", "gates.1.max=1.05", "gates.0.action=stop",
       "policy.precision=null", "policy.optimizer.kwargs.betas=[0.5, 0.25]", "warm_start.lr=1e-4"});
  EXPECT_EQ(config.grpo.seed, 3);
  EXPECT_EQ(config.gates[0].max, 2.0);
  EXPECT_EQ(config.gates[1].max, 1.05);
  EXPECT_EQ(config.gates[0].action, "stop");
  EXPECT_EQ(config.policy.precision, std::nullopt);
  EXPECT_EQ(config.policy.optimizer.kwargs.betas, (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(config.warm_start.lr, 1e-4);
}

TEST(ConfigOverrides, OfTextTakeTheWordAsItStands) {
  const auto prompt = [](const std::string& value) {
    return load(with(""), {"data.train.prompt_template=" + value}).data.train.prompt_template;
  };
  EXPECT_EQ(prompt("Q: {question} # [1]"), "Q: {question} # [1]");
  EXPECT_EQ(prompt("a=b"), "a=b");
  EXPECT_EQ(prompt("'x'"), "x");
  EXPECT_EQ(prompt("\"{q}\\n\""), "{q}\n");
  EXPECT_EQ(load(with(""), {"gates=[{metric: train/loss, max: 2}]"}).gates.at(0).max, 2.0);
  EXPECT_TRUE(load(with("gates: [{metric: a}]\n"), {"gates=[]"}).gates.empty());
}

}  // namespace
}  // namespace grpo::app
