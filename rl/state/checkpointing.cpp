#include "rl/state/checkpointing.h"

#include <nlohmann/json.hpp>

#include "model/core/config_check.h"
#include "model/core/config_range.h"
#include "model/core/errors.h"
#include "model/files/input_file.h"
#include "parallel/checkpoint/checkpoint.h"

namespace grpo::rl {

namespace {

constexpr const char* kWarmStartSteps = "warm_start_steps";

}  // namespace

void CheckpointingConfig::visit(ConfigVisitor& visitor) {
  visitor.field("enabled", enabled,
                "save checkpoints: every save_period steps, at the end, and after a signal");
  visitor.field("checkpoint_dir", checkpoint_dir,
                "their folder; \"\" is checkpoints in logger.log_dir");
  visitor.field("save_period", save_period, "steps between checkpoints");
  visitor.field("keep_last", keep_last,
                "newest checkpoints kept; 0 keeps all, or one besides keep_top_k");
  visitor.field(
      "metric_name", metric_name,
      "what makes a checkpoint good: a metric, also as val:accuracy or train:loss; null for none");
  visitor.field("higher_is_better", higher_is_better,
                "a higher value of it is better; false: a lower one");
  visitor.field("keep_top_k", keep_top_k,
                "best checkpoints kept, besides the newest ones; 0 for none");
}

void CheckpointingConfig::validate(const ConfigVisitor& visitor) const {
  require_range<int64_t>(visitor, "save_period", save_period, 1, kMaxSteps);
  require_range<int64_t>(visitor, "keep_last", keep_last, 0, kMaxSteps);
  require_range<int64_t>(visitor, "keep_top_k", keep_top_k, 0, kMaxSteps);
  check_config(keep_top_k == 0 || metric_name, visitor, "keep_top_k",
               fmt::format("{} needs checkpointing.metric_name, which is null", keep_top_k));
}

std::string RunState::to_json() const {
  nlohmann::ordered_json json{{"algorithm", algorithm},
                              {"step", step},
                              {"next_draw_index", next_draw_index},
                              {"optimizer_steps", optimizer_steps},
                              {"seed", seed},
                              {"pending_changed_elements", pending_changed_elements},
                              {"gates", nlohmann::ordered_json::parse(gates_json)},
                              {"early_stop", nlohmann::ordered_json::parse(early_stop_json)},
                              {"ranking", nlohmann::ordered_json::parse(ranking_json)}};
  if (num_warm_start_steps) json[kWarmStartSteps] = *num_warm_start_steps;
  return json.dump();
}

RunState RunState::from_json(const std::string& text, const std::string& where) {
  const nlohmann::json json = nlohmann::json::parse(text);
  const auto number = [&](const char* key) {
    if (!json.contains(key) || !json[key].is_number_integer() || json[key] < 0) {
      throw DataError(fmt::format("{}: \"{}\" is missing or not a whole number", where, key));
    }
    return json[key].get<int64_t>();
  };
  const auto require = [&](const char* key, bool ok, const char* kind) {
    if (!ok) throw DataError(fmt::format("{}: \"{}\" is missing or not {}", where, key, kind));
  };
  require("algorithm", json.contains("algorithm") && json["algorithm"].is_string(), "text");
  require("gates", json.contains("gates") && json["gates"].is_array(), "a list");
  for (const char* key : {"early_stop", "ranking"}) {
    require(key, json.contains(key) && json[key].is_object(), "an object");
  }
  return {.algorithm = json["algorithm"].get<std::string>(),
          .step = number("step"),
          .next_draw_index = number("next_draw_index"),
          .optimizer_steps = number("optimizer_steps"),
          .seed = number("seed"),
          .num_warm_start_steps = json.contains(kWarmStartSteps)
                                      ? std::optional(number(kWarmStartSteps))
                                      : std::nullopt,
          .pending_changed_elements = number("pending_changed_elements"),
          .gates_json = json["gates"].dump(),
          .early_stop_json = json["early_stop"].dump(),
          .ranking_json = json["ranking"].dump()};
}

RunState read_run_state(const std::filesystem::path& folder) {
  return RunState::from_json(parallel::read_manifest(folder).state_json,
                             (folder / "manifest.json").string());
}

std::filesystem::path checkpoint_parent(const CheckpointingConfig& config,
                                        const std::string& log_dir) {
  return config.checkpoint_dir.empty() ? std::filesystem::path(log_dir) / "checkpoints"
                                       : std::filesystem::path(config.checkpoint_dir);
}

std::optional<std::filesystem::path> find_checkpoint(const std::string& resume,
                                                     const std::filesystem::path& parent) {
  if (resume == "auto") {
    const auto found = parallel::finished_checkpoints(parent);
    return found.empty() ? std::nullopt : std::optional(found.back());
  }
  const auto found = checkpoint_at(resume);
  if (!found) {
    throw ConfigError(
        fmt::format("--resume {}: no finished checkpoint there; allowed: a folder step_N with "
                    "manifest.json, a folder of "
                    "such folders, or auto",
                    resume));
  }
  return found;
}

std::optional<std::filesystem::path> checkpoint_at(const std::filesystem::path& path) {
  if (model::is_present(path / "manifest.json")) return path;
  const auto found = parallel::finished_checkpoints(path);
  return found.empty() ? std::nullopt : std::optional(found.back());
}

}  // namespace grpo::rl
