#include "app/commands/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/commands/version.h"
#include "app/config/config_node.h"
#include "app/config/config_reference.h"
#include "model/core/errors.h"
#include "model/core/nearest_name.h"

namespace grpo::app {

namespace {

constexpr const char* kExitCodes =
    "Exit codes:\n"
    "  0   done\n"
    "  2   configuration: command line, config file, key or override\n"
    "  3   data, model or tokenizer file\n"
    "  4   a gate failed or stopped the run\n"
    "  5   communication: a rank failed, died, or did not answer in time\n"
    "  75  checkpoint saved after SIGTERM, SIGUSR1, SIGINT or SIGHUP\n"
    "  1   anything else, and a signal without a checkpoint";

constexpr int kMaxLocalRanks = 4096;
constexpr int64_t kMaxSamples = int64_t{1} << 20;

// What the sampling options of `generate` were given, as text for the config's reader to check.
struct SamplingOptions {
  std::string temperature, top_k, top_p, max_new_tokens;
  bool ignore_eos = false;

  std::vector<std::string> as_overrides() const {
    std::vector<std::string> words;
    const auto add = [&](const char* key, const std::string& value) {
      if (!value.empty()) words.push_back(fmt::format("policy.generation.{}={}", key, value));
    };
    add("temperature", temperature);
    add("top_k", top_k);
    add("top_p", top_p);
    add("max_new_tokens", max_new_tokens);
    add("ignore_eos", ignore_eos ? "true" : "");
    return words;
  }
};

// CLI11's app over our option structs.
class Parser {
 public:
  Parser() : app_("GRPO training with GTP weight rematerialization", "grpo_train") {
    app_.footer(kExitCodes);
    app_.set_version_flag("--version", fmt::format("grpo_train {}", kVersion));
    app_.add_option("--config", train_.config_path, "YAML file of the run")
        ->type_name("FILE")
        ->check(not_empty);
    add_ranks(app_, train_.num_local_ranks);
    app_.add_flag("--check", train_.check_only,
                  "start nothing; print the resolved config, the layout and the batch arithmetic")
        ->disable_flag_override();
    app_.add_flag("--print-config-reference", print_reference_,
                  "print the table of all config keys (Markdown)")
        ->disable_flag_override();
    app_.add_option("--resume", train_.resume,
                    "go on from this checkpoint (or the newest in this folder); auto: from the "
                    "run's newest, "
                    "or start fresh")
        ->type_name("DIR|auto");
    add_overrides(app_, train_.overrides);
    app_.require_subcommand(0, 1);
    add_score();
    add_generate();
    add_export();
  }

  Command parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      return PrintText{app_.help()};
    } catch (const CLI::CallForVersion&) {
      return PrintText{fmt::format("grpo_train {}\n", kVersion)};
    } catch (const CLI::ParseError& error) {
      fail(error);
    }
    const CLI::App* const subcommand = chosen_subcommand();
    if (subcommand != nullptr) {
      if (!train_.config_path.empty() || train_.check_only || !train_.overrides.empty() ||
          train_.num_local_ranks || train_.resume || print_reference_) {
        throw ConfigError(fmt::format(
            "options of the training command stand before '{}'; allowed: grpo_train {} OPTIONS",
            subcommand->get_name(), subcommand->get_name()));
      }
      if (*score_app_) return score_;
      if (*export_app_) return export_;
      add_sampling_options();
      return generate_;
    }
    if (print_reference_) return PrintText{config_reference()};
    if (train_.config_path.empty()) {
      throw ConfigError(
          "--config is missing; allowed: grpo_train --config FILE [key.path=value ...], grpo_train "
          "score "
          "..., grpo_train generate ..., grpo_train export ... (see --help)");
    }
    return train_;
  }

 private:
  static void add_ranks(CLI::App& app, std::optional<int>& num_local_ranks) {
    app.add_option("--nproc", num_local_ranks, "start this many local ranks")
        ->type_name("N")
        ->check(CLI::Range(1, kMaxLocalRanks));
  }

  static void add_overrides(CLI::App& app, std::vector<std::string>& overrides) {
    app.add_option("overrides", overrides,
                   "key.path=value: config keys set from here; the last wins")
        ->type_name("")
        ->check([](const std::string& word) {
          return word.find('=') != std::string::npos && word.front() != '='
                     ? ""
                     : fmt::format("'{}' is not key.path=value", printable(word));
        });
  }

  static void add_files(CLI::App& app, std::string& model, std::string& input,
                        std::string& output) {
    add_path(app, "--model", model, "Hugging Face directory", "DIR");
    add_path(app, "--input", input, "JSON lines to read", "FILE");
    add_path(app, "--output", output, "JSON lines to write", "FILE");
  }

  static void add_path(CLI::App& app, const std::string& name, std::string& path,
                       const std::string& what, const std::string& kind) {
    app.add_option(name, path, what)->type_name(kind)->required()->check(not_empty);
  }

  static std::string not_empty(const std::string& word) {
    return word.empty() ? "the name is empty; allowed: a path" : "";
  }

  void add_score() {
    score_app_ = app_.add_subcommand(
        "score",
        "log-probs: {\"tokens\":[..]} or {\"text\":\"..\"} to {\"tokens\":[..],\"logprobs\":[..]}");
    add_files(*score_app_, score_.model_dir, score_.input_path, score_.output_path);
    add_ranks(*score_app_, score_.num_local_ranks);
    add_overrides(*score_app_, score_.overrides);
    score_app_->footer(kExitCodes);
  }

  void add_generate() {
    generate_app_ = app_.add_subcommand(
        "generate", "completions of {\"prompt\":\"..\"} or {\"tokens\":[..]}, one line a sample");
    CLI::App& app = *generate_app_;
    add_files(app, generate_.model_dir, generate_.input_path, generate_.output_path);
    app.add_option("--temperature", sampling_.temperature, "divides the logits; 0 is greedy")
        ->type_name("NUMBER");
    app.add_option("--top-k", sampling_.top_k, "keep the k most likely tokens; 0 keeps all")
        ->type_name("N");
    app.add_option("--top-p", sampling_.top_p, "keep the most likely tokens up to this mass")
        ->type_name("NUMBER");
    app.add_option("--max-new-tokens", sampling_.max_new_tokens, "most tokens of a completion")
        ->type_name("N");
    app.add_option("--num-samples", generate_.num_samples, "completions of each prompt")
        ->type_name("N")
        ->check(CLI::Range(int64_t{1}, kMaxSamples));
    app.add_option("--seed", generate_.seed, "keys the sampling")
        ->type_name("N")
        ->check(CLI::Range(int64_t{0}, INT64_MAX));
    app.add_flag("--ignore-eos", sampling_.ignore_eos, "draw max-new-tokens whatever comes")
        ->disable_flag_override();
    add_ranks(app, generate_.num_local_ranks);
    add_overrides(app, generate_.overrides);
    app.footer(kExitCodes);
  }

  void add_export() {
    export_app_ =
        app_.add_subcommand("export", "a checkpoint's weights as a Hugging Face directory");
    add_path(*export_app_, "--checkpoint", export_.checkpoint, "folder step_N, or a folder of them",
             "DIR");
    add_path(*export_app_, "--output", export_.output_dir, "folder to write", "DIR");
    export_app_->footer(kExitCodes);
  }

  // The options of `generate` as overrides, each key from one side alone.
  void add_sampling_options() {
    for (const std::string& option : sampling_.as_overrides()) {
      const std::string key = option.substr(0, option.find('=') + 1);
      for (const std::string& word : generate_.overrides) {
        if (!word.starts_with(key)) continue;
        throw ConfigError(fmt::format("{} is given twice, as an option and as {}; allowed: one",
                                      printable(option), printable(word)));
      }
      generate_.overrides.push_back(option);
    }
  }

  const CLI::App* chosen_subcommand() const {
    for (const CLI::App* app : {score_app_, generate_app_, export_app_}) {
      if (*app) return app;
    }
    return nullptr;
  }

  // One line; for a misspelt option or command the nearest one.
  [[noreturn]] void fail(const CLI::ParseError& error) const {
    const CLI::App* const subcommand = chosen_subcommand();
    const CLI::App& app = subcommand != nullptr ? *subcommand : app_;
    for (const std::string& word : app.remaining()) {
      if (!word.starts_with("-")) continue;
      std::vector<std::string> names;
      for (const CLI::Option* option : app.get_options()) {
        if (!option->get_positional()) names.push_back(option->get_name());
      }
      const std::string given = word.substr(0, word.find('='));
      const auto longer = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
        return name.starts_with(given);
      });
      throw ConfigError(fmt::format("{} is not an option; nearest: {}", printable(word),
                                    longer != names.end() ? *longer : nearest_name(given, names)));
    }
    throw ConfigError(fmt::format("command line: {} (see --help)", error.what()));
  }

  CLI::App app_;
  CLI::App* score_app_ = nullptr;
  CLI::App* generate_app_ = nullptr;
  CLI::App* export_app_ = nullptr;
  TrainOptions train_;
  ScoreOptions score_;
  GenerateOptions generate_;
  ExportOptions export_;
  SamplingOptions sampling_;
  bool print_reference_ = false;
};

}  // namespace

Command parse_command_line(int argc, const char* const* argv) { return Parser().parse(argc, argv); }

}  // namespace grpo::app
