#include "app/commands/command_line.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "app/config/inference_config.h"
#include "model/core/errors.h"

namespace grpo::app {
namespace {

Command parse(std::vector<const char*> words) {
  words.insert(words.begin(), "grpo_train");
  return parse_command_line(static_cast<int>(words.size()), words.data());
}

std::string error_of(const std::vector<const char*>& words) {
  try {
    parse(words);
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 0) << message;
    EXPECT_EQ(error.exit_code(), ExitCode::kConfig);
    return message;
  }
  return "";
}

TEST(CommandLine, Train) {
  const auto options =
      std::get<TrainOptions>(parse({"--config", "a.yaml", "--nproc", "3", "grpo.seed=1",
                                    "gates=[{metric: a, max: 1}]", "a.b=x=y"}));
  EXPECT_EQ(options.config_path, "a.yaml");
  EXPECT_EQ(options.num_local_ranks, 3);
  EXPECT_FALSE(options.check_only);
  EXPECT_EQ(options.overrides,
            (std::vector<std::string>{"grpo.seed=1", "gates=[{metric: a, max: 1}]", "a.b=x=y"}));
}

TEST(CommandLine, OverridesMayStandBeforeOptions) {
  const auto options =
      std::get<TrainOptions>(parse({"a.b=-1", "--check", "c.d=", "--config=a.yaml", "e.f= g"}));
  EXPECT_TRUE(options.check_only);
  EXPECT_EQ(options.config_path, "a.yaml");
  EXPECT_EQ(options.num_local_ranks, std::nullopt);
  EXPECT_EQ(options.overrides, (std::vector<std::string>{"a.b=-1", "c.d=", "e.f= g"}));
}

TEST(CommandLine, Score) {
  const auto options = std::get<ScoreOptions>(
      parse({"score", "--model", "m", "--input", "i", "--output", "o", "parallel.gtp_remat=2"}));
  EXPECT_EQ(options.model_dir, "m");
  EXPECT_EQ(options.input_path, "i");
  EXPECT_EQ(options.output_path, "o");
  EXPECT_EQ(options.overrides, (std::vector<std::string>{"parallel.gtp_remat=2"}));
}

TEST(CommandLine, GenerateOptionsBecomeConfigKeys) {
  const auto options = std::get<GenerateOptions>(parse({"generate",
                                                        "--model",
                                                        "m",
                                                        "--input",
                                                        "i",
                                                        "--output",
                                                        "o",
                                                        "--temperature",
                                                        "0",
                                                        "--top-k",
                                                        "5",
                                                        "--top-p",
                                                        "0.9",
                                                        "--max-new-tokens",
                                                        "7",
                                                        "--num-samples",
                                                        "3",
                                                        "--seed",
                                                        "9",
                                                        "--ignore-eos",
                                                        "policy.precision=bfloat16"}));
  EXPECT_EQ(options.num_samples, 3);
  EXPECT_EQ(options.seed, 9);
  const InferenceConfig config = load_inference_config(options.model_dir, options.overrides);
  EXPECT_EQ(config.policy.model_name, "m");
  EXPECT_EQ(config.policy.generation.temperature, 0.0);
  EXPECT_EQ(config.policy.generation.top_k, 5);
  EXPECT_EQ(config.policy.generation.top_p, 0.9);
  EXPECT_EQ(config.policy.generation.max_new_tokens, 7);
  EXPECT_TRUE(config.policy.generation.ignore_eos);
  EXPECT_EQ(config.policy.precision, "bfloat16");
  EXPECT_EQ(error_of({"generate", "--model", "m", "--input", "i", "--output", "o", "--top-k", "5",
                      "policy.generation.top_k=6"}),
            "policy.generation.top_k=5 is given twice, as an option and as "
            "policy.generation.top_k=6; allowed: one");
}

TEST(CommandLine, KeysThatInferenceDoesNotUseAreErrors) {
  EXPECT_THROW(load_inference_config("m", {"grpo.seed=1"}), ConfigError);
  EXPECT_THROW(load_inference_config("m", {"policy.init_std=1"}), ConfigError);
  EXPECT_THROW(load_inference_config("m", {"policy.sequence_packing.train_mb_tokens=9"}),
               ConfigError);
  EXPECT_THROW(load_inference_config("m", {"policy.sequence_packing.logprob_mb_tokens=0"}),
               ConfigError);
  EXPECT_THROW(load_inference_config("m", {"policy.precision=float16"}), ConfigError);
  EXPECT_THROW(load_inference_config("m", {"policy.generation.top_p=2"}), ConfigError);
  EXPECT_THROW(load_inference_config("m", {"numerics.inject_fault=split_k"}), ConfigError);
  EXPECT_EQ(load_inference_config("m", {"policy.precision=bfloat16"}).policy.precision, "bfloat16");
}

TEST(CommandLine, TextsForStandardOutput) {
  const std::string help = std::get<PrintText>(parse({"--help"})).text;
  for (const char* part :
       {"--config", "--nproc", "--check", "score", "generate", "Exit codes:", "75"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part;
  }
  EXPECT_NE(std::get<PrintText>(parse({"generate", "--help"})).text.find("--ignore-eos"),
            std::string::npos);
  EXPECT_EQ(std::get<PrintText>(parse({"--version"})).text.substr(0, 11), "grpo_train ");
  EXPECT_NE(std::get<PrintText>(parse({"--print-config-reference"})).text.find("`grpo.seed`"),
            std::string::npos);
}

TEST(CommandLine, ExportNeedsBothFolders) {
  const auto options =
      std::get<ExportOptions>(parse({"export", "--checkpoint", "c", "--output", "o"}));
  EXPECT_EQ(options.checkpoint, "c");
  EXPECT_EQ(options.output_dir, "o");
  EXPECT_NE(error_of({"export", "--output", "o"}).find("--checkpoint"), std::string::npos);
  EXPECT_EQ(std::get<TrainOptions>(parse({"--config", "a", "--resume", "auto"})).resume, "auto");
}

TEST(CommandLine, ErrorsAreOneLine) {
  EXPECT_NE(error_of({}).find("--config is missing"), std::string::npos);
  EXPECT_NE(error_of({"--cheek"}).find("--cheek is not an option; nearest: --check"),
            std::string::npos);
  EXPECT_NE(error_of({"--config", "a", "--npro=2"}).find("nearest: --nproc"), std::string::npos);
  EXPECT_NE(error_of({"generate", "--model", "m", "--input", "i", "--output", "o", "--topk", "1"})
                .find("--topk is not an option; nearest: --top-k"),
            std::string::npos);
  EXPECT_NE(error_of({"generate", "--model", "m", "--input", "i", "--output", "o", "--temp", "1"})
                .find("--temp is not an option; nearest: --temperature"),
            std::string::npos);
  EXPECT_NE(error_of({"--config", "a", "seed"}).find("'seed' is not key.path=value"),
            std::string::npos);
  EXPECT_NE(error_of({"scroe"}).find("'scroe' is not key.path=value"), std::string::npos);
  EXPECT_NE(error_of({"--config", "a", "--nproc", "0"}), "");
  EXPECT_NE(error_of({"--config", "a", "--nproc", "-1"}), "");
  EXPECT_NE(error_of({"--config", "a", "--nproc", "two"}), "");
  EXPECT_NE(error_of({"--config", "a", "--nproc", "99999999999"}), "");
  EXPECT_NE(error_of({"--config", "a", "--nproc"}), "");
  EXPECT_NE(error_of({"--config"}), "");
  EXPECT_NE(error_of({"--config", "a", "--config", "b"}), "");
  EXPECT_NE(error_of({"score", "--model", "m", "--input", "i"}).find("--output"),
            std::string::npos);
  EXPECT_NE(error_of({"--config", "a", "score", "--model", "m", "--input", "i", "--output", "o"})
                .find("grpo_train score OPTIONS"),
            std::string::npos);
  EXPECT_NE(
      error_of({"generate", "--model", "m", "--input", "i", "--output", "o", "--num-samples", "0"}),
      "");
  EXPECT_NE(error_of({"score", "generate"}), "");
}

}  // namespace
}  // namespace grpo::app
