#include "app/config/yaml_config_reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "model/core/errors.h"
#include "tests/app/bad_config.h"
#include "tests/app/scratch_folder.h"

namespace grpo::app {
namespace {

using testing::ScratchFolder;

class BadConfig : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadConfig, GivesOneLineThatNamesPlaceValueAndRemedy) { expect_message(GetParam()); }

std::vector<BadCase> bad_keys() {
  return {
      {"unknown_key",
       with("grpo:\n  sed: 1\n"),
       {},
       "c.yaml:4:3: grpo.sed is not a key; nearest: grpo.seed"},
      {"unknown_section",
       "polcy:\n  model_name: custom\n",
       {},
       "c.yaml:1:1: polcy is not a key; nearest: policy"},
      {"key_of_another_section",
       with("grpo:\n  lr: 1\n"),
       {},
       "c.yaml:4:3: grpo.lr is not a key; nearest: policy.optimizer.kwargs.lr"},
      {"unknown_key_in_a_list",
       with("gates:\n  - metric: train/loss\n    maxx: 1\n"),
       {},
       "c.yaml:5:5: gates.0.maxx is not a key; nearest: gates.[].max"},
      {"deep_unknown_key",
       with("") + "loss_fn: {}\nlogger:\n  logdir: x\n",
       {},
       "c.yaml:5:3: logger.logdir is not a key; nearest: logger.log_dir"},
      {"duplicate_key",
       with("grpo:\n  seed: 1\n  max_num_steps: 2\n  seed: 1\n"),
       {},
       "c.yaml:6:3: grpo.seed is given twice; it already stands at c.yaml:4:3"},
      {"duplicate_section",
       with("grpo:\n  seed: 1\ngrpo:\n  seed: 2\n"),
       {},
       "c.yaml:5:1: grpo is given twice; it already stands at c.yaml:3:1"},
      {"duplicate_in_quotes",
       with("grpo: {seed: 1, 'seed': 2}\n"),
       {},
       "c.yaml:3:17: grpo.seed is given twice; it already stands at c.yaml:3:8"},
      {"key_without_name", with("grpo: {: 1}\n"), {}, "c.yaml:3:8: a key is missing before ':'"},
      {"list_as_key",
       with("? [a]\n: 3\n"),
       {},
       "c.yaml:3:3: a list or a mapping stands where a key is expected (an open bracket?)"},
      {"empty_key", with("'': 3\n"), {}, "c.yaml:3:1:  is not a key; nearest: sft"},
  };
}
INSTANTIATE_TEST_SUITE_P(Keys, BadConfig, ::testing::ValuesIn(bad_keys()), case_name);

std::vector<BadCase> bad_values() {
  const auto seed = [](const char* value) {
    return with(std::string("grpo:\n  seed: ") + value + "\n");
  };
  const auto seed_message = [](const std::string& shown) {
    return "c.yaml:4:3: grpo.seed is " + shown + "; allowed: an integer";
  };
  const auto decay = [](const char* value) {
    return with(std::string("warm_start: {lr: ") + value + "}\n");
  };
  const auto decay_message = [](const std::string& shown) {
    return "c.yaml:3:14: warm_start.lr is " + shown + "; allowed: a number, like 0.5 or 1e-6";
  };
  const auto flag = [](const char* value) {
    return with(std::string("logger: {overwrite: ") + value + "}\n");
  };
  const auto flag_message = [](const std::string& shown) {
    return "c.yaml:3:10: logger.overwrite is " + shown + "; allowed: true or false";
  };
  return {
      {"integer_word", seed("abc"), {}, seed_message("'abc'")},
      {"integer_fraction", seed("1.5"), {}, seed_message("'1.5'")},
      {"integer_inexact_power", seed("1e-3"), {}, seed_message("'1e-3'")},
      {"integer_tiny_fraction",
       seed("1.00000000000000000001"),
       {},
       seed_message("'1.00000000000000000001'")},
      {"integer_too_large", seed("9223372036854775808"), {}, seed_message("'9223372036854775808'")},
      {"integer_huge_power", seed("1e999999999"), {}, seed_message("'1e999999999'")},
      {"integer_hexadecimal", seed("0x10"), {}, seed_message("'0x10'")},
      {"integer_octal", seed("010"), {}, seed_message("'010'")},
      {"integer_underscores", seed("1_000"), {}, seed_message("'1_000'")},
      {"integer_in_quotes", seed("\"7\""), {}, seed_message("'7' in quotes")},
      {"integer_null", seed("null"), {}, seed_message("null")},
      {"integer_empty", seed(""), {}, seed_message("null")},
      {"integer_bool", seed("true"), {}, seed_message("'true'")},
      {"integer_list", seed("[1]"), {}, seed_message("a list")},
      {"integer_mapping", seed("{a: 1}"), {}, seed_message("a mapping")},
      {"integer_two_words", seed("1 2"), {}, seed_message("'1 2'")},
      {"number_word", decay("fast"), {}, decay_message("'fast'")},
      {"number_nan", decay(".nan"), {}, decay_message("'.nan'")},
      {"number_inf", decay(".inf"), {}, decay_message("'.inf'")},
      {"number_overflow", decay("1e999"), {}, decay_message("'1e999'")},
      {"number_in_quotes", decay("'1e-3'"), {}, decay_message("'1e-3' in quotes")},
      {"number_comma", decay("[0,1]"), {}, decay_message("a list")},
      {"number_two_signs", decay("1e+-3"), {}, decay_message("'1e+-3'")},
      {"number_hexadecimal", decay("0x1p-3"), {}, decay_message("'0x1p-3'")},
      {"number_no_digits", decay("."), {}, decay_message("'.'")},
      {"number_trailing_word", decay("1e-3x"), {}, decay_message("'1e-3x'")},
      {"bool_yes", flag("yes"), {}, flag_message("'yes'")},
      {"bool_upper", flag("True"), {}, flag_message("'True'")},
      {"bool_one", flag("1"), {}, flag_message("'1'")},
      {"bool_in_quotes", flag("'true'"), {}, flag_message("'true' in quotes")},
      {"text_null",
       with("logger: {log_dir: null}\n"),
       {},
       "c.yaml:3:10: logger.log_dir is null; allowed: text ('' for none)"},
      {"text_list",
       with("logger: {log_dir: [a]}\n"),
       {},
       "c.yaml:3:10: logger.log_dir is a list; allowed: text ('' for none)"},
      {"text_long_and_on_two_lines",
       with("numerics:\n  mode: \"a\\nb" + std::string(80, 'x') + "\"\n"),
       {},
       "c.yaml:4:3: numerics.mode is 'a\\nb" + std::string(56, 'x') +
           "...' in quotes; allowed: exact, fast"},
      {"choice",
       with("numerics: {mode: exakt}\n"),
       {},
       "c.yaml:3:12: numerics.mode is 'exakt'; allowed: exact, fast"},
      {"integers_scalar",
       "policy: {model_name: custom, generation: {stop_token_ids: 5}}\n",
       {},
       "c.yaml:1:43: policy.generation.stop_token_ids is '5'; allowed: a list of integers, like "
       "[1, 2]"},
      {"integers_fraction",
       "policy: {model_name: custom, generation: {stop_token_ids: [1, 2.5]}}\n",
       {},
       "c.yaml:1:43: policy.generation.stop_token_ids is '2.5'; allowed: a list of integers, like "
       "[1, 2]"},
      {"numbers_word",
       "policy: {model_name: custom, optimizer: {kwargs: {betas: [0.9, x]}}}\n",
       {},
       "c.yaml:1:51: policy.optimizer.kwargs.betas is 'x'; allowed: a list of numbers, like [0.9, "
       "0.999]"},
      {"section_scalar",
       with("grpo: 5\n"),
       {},
       "c.yaml:3:1: grpo is '5'; allowed: a mapping of its keys"},
      {"section_list",
       with("grpo: [1]\n"),
       {},
       "c.yaml:3:1: grpo is a list; allowed: a mapping of its keys"},
      {"section_null",
       with("grpo:\n"),
       {},
       "c.yaml:3:1: grpo is null; allowed: a mapping of its keys"},
      {"gates_mapping",
       with("gates: {metric: a}\n"),
       {},
       "c.yaml:3:1: gates is a mapping; allowed: a list of mappings ([] for none)"},
      {"gates_of_words",
       with("gates:\n  - train/loss\n"),
       {},
       "c.yaml:4:5: gates.0 is 'train/loss'; allowed: a mapping of its keys"},
  };
}
INSTANTIATE_TEST_SUITE_P(Values, BadConfig, ::testing::ValuesIn(bad_values()), case_name);

std::vector<BadCase> bad_yaml() {
  return {
      {"empty_file", "", {}, "c.yaml: is empty; allowed: a mapping of config keys"},
      {"only_comments", "# nothing\n\n", {}, "c.yaml: is empty; allowed: a mapping of config keys"},
      {"list_as_root",
       "- a\n",
       {},
       "c.yaml:1:1: the config is a list; allowed: a mapping of its sections"},
      {"scalar_as_root",
       "hello\n",
       {},
       "c.yaml:1:1: the config is 'hello'; allowed: a mapping of its sections"},
      {"two_documents",
       with("---\ngrpo: {}\n"),
       {},
       "c.yaml:4:1: a second YAML document starts here; allowed: one document"},
      {"tab_before_a_key",
       with("grpo:\n\tseed: 1\n"),
       {},
       "c.yaml:4:6: the line is indented with a tab; allowed: spaces"},
      {"tab_after_spaces",
       with("grpo:\n  seed: 1\n \tmax_num_steps: 2\n"),
       {},
       "c.yaml:5:2: the line is indented with a tab; allowed: spaces"},
      {"anchor",
       with("grpo: &a\n  seed: 1\n"),
       {},
       "c.yaml:3:7: anchors (&name) are not read; write the value out"},
      {"anchored_value",
       with("grpo: {seed: &s 1}\n"),
       {},
       "c.yaml:3:14: anchors (&name) are not read; write the value out"},
      {"alias",
       with("grpo: {seed: *s}\n"),
       {},
       "c.yaml:3:14: not valid YAML: the referenced anchor is not defined"},
      {"merge_key",
       with("grpo:\n  <<: {seed: 1}\n"),
       {},
       "c.yaml:4:3: merge keys (<<) are not read; write the keys out"},
      {"tag",
       with("grpo: {seed: !!int 5}\n"),
       {},
       "c.yaml:3:14: tags (tag:yaml.org,2002:int) are not read; write the plain value"},
      {"open_quote",
       with("logger: {log_dir: \"runs}\n"),
       {},
       "c.yaml:3:19: the quote is not closed"},
      {"open_bracket",
       with("gates: [\n"),
       {},
       "c.yaml:4:1: not valid YAML: end of sequence flow not found"},
      {"two_colons", with("grpo: seed: 1\n"), {}, "c.yaml:3:11: not valid YAML: illegal map value"},
      {"zero_byte",
       with(std::string("grpo: {}\0", 9)),
       {},
       "c.yaml: holds a zero byte; allowed: YAML text in UTF-8"},
  };
}
INSTANTIATE_TEST_SUITE_P(Yaml, BadConfig, ::testing::ValuesIn(bad_yaml()), case_name);

std::vector<BadCase> invalid_values() {
  return {
      {"from_the_file",
       with("grpo:\n  max_num_steps: 0\n"),
       {},
       "c.yaml:4:3: grpo.max_num_steps is 0; allowed: 1 to 2147483648"},
      {"from_an_override",
       with(""),
       {"parallel.tensor=2"},
       "override parallel.tensor=2: parallel.tensor is 2: tensor parallelism is not built yet; "
       "allowed: 1 "
       "(use gtp_remat or data instead)"},
      {"from_a_default",
       "grpo: {}\n",
       {},
       "default of policy.model_name is missing; allowed: a Hugging Face directory, a preset "
       "(qwen2.5-0.5b, ...) or custom"},
      {"deep",
       "policy:\n  model_name: custom\n  optimizer:\n    kwargs:\n      betas: [0.9]\n",
       {},
       "c.yaml:5:7: policy.optimizer.kwargs.betas is [0.9]; allowed: two numbers, each 0 to "
       "0.9999999"},
  };
}
INSTANTIATE_TEST_SUITE_P(Validation, BadConfig, ::testing::ValuesIn(invalid_values()), case_name);

std::vector<BadCase> unused_keys() {
  const std::string data = "data: {train: {path: d.jsonl}}\n";
  return {
      {"sizes_beside_a_preset",
       data + "policy:\n  model_name: qwen2.5-0.5b\n  model:\n    hidden_size: 128\n",
       {},
       "c.yaml:5:5: policy.model.hidden_size is 128, but nothing reads it: policy.model_name is "
       "'qwen2.5-0.5b', only custom reads it"},
      {"initialisation_beside_weights",
       data + "policy:\n  model_name: .\n  init_std: 0.5\n",
       {},
       "c.yaml:4:3: policy.init_std is 0.5, but nothing reads it: policy.model_name is '.', whose "
       "weights come from files"},
      {"adamw_beside_sgd",
       with(""),
       {"policy.optimizer.name=sgd", "policy.optimizer.kwargs.betas=[0.5, 0.5]"},
       "override policy.optimizer.kwargs.betas=[0.5, 0.5]: policy.optimizer.kwargs.betas is [0.5, "
       "0.5], but nothing reads it: policy.optimizer.name is sgd"},
  };
}
INSTANTIATE_TEST_SUITE_P(Unused, BadConfig, ::testing::ValuesIn(unused_keys()), case_name);

TEST(YamlConfigReader, UnusedKeysMayHoldTheirDefaultsAndSwitchesMayBeOff) {
  EXPECT_EQ(error_of("data: {train: {path: d}}\npolicy: {model_name: qwen2.5-0.5b, model: "
                     "{hidden_size: 64}}\n"),
            "");
  EXPECT_EQ(error_of(with("warm_start: {num_steps: 0, lr: 0.5}\n")), "");
}

TEST(YamlConfigReader, ReadsEveryKindOfField) {
  const rl::RunConfig config = load(
      "policy:\n"
      "  model_name: custom\n"
      "  precision: bfloat16\n"
      "  optimizer: {kwargs: {betas: [0.8, .5], lr: 1e-6}}\n"
      "  generation: {stop_token_ids: [3, 1e2], ignore_eos: true}\n"
      "data: {train: {path: 'a b.jsonl', prompt_template: \"{q}\\n\"}}\n"
      "loss_fn: {ratio_clip_c: 3, kl_input_clamp_value: null}\n"
      "grpo: {seed: 1e3, max_num_steps: 4.0}\n"
      "gates:\n- {metric: train/loss, max: 1.05}\n- metric: train/reward\n  min: -1\n");
  EXPECT_EQ(config.policy.precision, "bfloat16");
  EXPECT_EQ(config.policy.optimizer.kwargs.betas, (std::vector<double>{0.8, 0.5}));
  EXPECT_EQ(config.policy.optimizer.kwargs.lr, 1e-6);
  EXPECT_EQ(config.policy.generation.stop_token_ids, (std::vector<int64_t>{3, 100}));
  EXPECT_TRUE(config.policy.generation.ignore_eos);
  EXPECT_EQ(config.data.train.path, "a b.jsonl");
  EXPECT_EQ(config.data.train.prompt_template, "{q}\n");
  EXPECT_EQ(config.loss_fn.ratio_clip_c, 3.0);
  EXPECT_EQ(config.loss_fn.kl_input_clamp_value, std::nullopt);
  EXPECT_EQ(config.grpo.seed, 1000);
  EXPECT_EQ(config.grpo.max_num_steps, 4);
  ASSERT_EQ(config.gates.size(), 2u);
  EXPECT_EQ(config.gates[0].max, 1.05);
  EXPECT_EQ(config.gates[1].min, -1.0);
  EXPECT_EQ(config.gates[1].max, std::nullopt);
}

TEST(YamlConfigReader, ReadsEverySpellingOfANumber) {
  for (const char* text :
       {"1e-6", "1E-6", "1.0e-6", "1.e-06", "0.000001", ".000001", "+1e-6", "0.1e-5"}) {
    EXPECT_EQ(load(with(std::string("warm_start: {lr: ") + text + "}\n")).warm_start.lr, 1e-6)
        << text;
  }
}

TEST(YamlConfigReader, ReadsExactIntegersAtTheLimits) {
  const auto seed = [](const char* text) {
    return load(with(std::string("grpo: {seed: ") + text + "}\n")).grpo.seed;
  };
  EXPECT_EQ(seed("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(seed("9.223372036854775807e18"), INT64_MAX);
  EXPECT_EQ(seed("+12"), 12);
  EXPECT_EQ(seed("1200e-2"), 12);
  EXPECT_EQ(seed("0"), 0);
}

TEST(YamlConfigReader, TakesByteOrderMarkAndWindowsLineEnds) {
  EXPECT_EQ(load("\xEF\xBB\xBFpolicy:\r\n  model_name: custom\r\ndata: {train: {path: d}}\r\n")
                .policy.model_name,
            "custom");
}

TEST(YamlConfigReader, TextThatIsNotUtf8) {
  EXPECT_EQ(error_of(with("logger: {log_dir: \"a\xC3(\"}\n")),
            "c.yaml: the text is not UTF-8: byte 0xc3 at offset 80; allowed: YAML text in UTF-8");
  // The resolved config could not be read back.
  EXPECT_EQ(
      error_of(kLeast, {"logger.log_dir=a\xE9"}),
      "override logger.log_dir=a\\xe9: logger.log_dir is 'a\\xe9'; allowed: text in UTF-8, which "
      "the saved config is written in");
}

TEST(YamlConfigReader, PlacesOfKeysAreKept) {
  const ScratchFolder folder;
  const std::string path =
      folder.write("c.yaml", with("gates:\n  - {metric: train/loss, max: 1}\n"));
  ConfigOrigins origins;
  load_run_config(path, {"policy.generation.top_k=5", "gates.0.max=2"}, &origins);
  EXPECT_EQ(origins.at("policy.model_name"), path + ":1:10");
  EXPECT_EQ(origins.at("gates.0.metric"), path + ":4:6");
  EXPECT_EQ(origins.at("gates.0.max"), "override gates.0.max=2");
  EXPECT_EQ(origins.at("policy.generation.top_k"), "override policy.generation.top_k=5");
  EXPECT_FALSE(origins.contains("policy.generation.top_p"));
}

TEST(YamlConfigReader, FilesThatCannotBeRead) {
  const ScratchFolder folder;
  const auto error = [](const std::string& path) -> std::string {
    try {
      load_run_config(path, {});
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error(folder.path() + "/none.yaml"),
            folder.path() + "/none.yaml: No such file or directory");
  EXPECT_EQ(error(folder.path()), folder.path() + ": is a folder; allowed: a regular file");
  EXPECT_EQ(error("/dev/zero"), "/dev/zero: is a device; allowed: a regular file");
  const std::string pipe = folder.path() + "/pipe.yaml";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(error(pipe), pipe + ": is a pipe; allowed: a regular file");
  const std::string circle = folder.path() + "/circle.yaml";
  std::filesystem::create_symlink(circle, circle);
  EXPECT_EQ(error(circle), circle + ": Too many levels of symbolic links");
}

TEST(YamlConfigReader, DeepNestingIsAnErrorNotACrash) {
  EXPECT_NE(error_of("grpo: " + std::string(200000, '[')), "");
  EXPECT_NE(error_of(std::string(200000, '{')), "");
}

}  // namespace
}  // namespace grpo::app
