#include "rl/checkpointing.h"

#include <nlohmann/json.hpp>

#include "model/core/config_range.h"
#include "model/core/errors.h"
#include "model/input_file.h"
#include "parallel/checkpoint.h"

namespace grpo::rl {

void CheckpointingConfig::visit(ConfigVisitor& visitor) {
  visitor.field("enabled", enabled,
                "save checkpoints: every save_period steps, at the end, and after a signal");
  visitor.field("checkpoint_dir", checkpoint_dir,
                "their folder; \"\" is checkpoints in logger.log_dir");
  visitor.field("save_period", save_period, "steps between checkpoints");
  visitor.field("keep_last", keep_last, "newest checkpoints kept; 0 keeps all");
}

void CheckpointingConfig::validate(const ConfigVisitor& visitor) const {
  require_range<int64_t>(visitor, "save_period", save_period, 1, kMaxSteps);
  require_range<int64_t>(visitor, "keep_last", keep_last, 0, kMaxSteps);
}

std::string RunState::to_json() const {
  return nlohmann::ordered_json{{"step", step},
                                {"next_draw_index", next_draw_index},
                                {"optimizer_steps", optimizer_steps},
                                {"seed", seed},
                                {"pending_changed_elements", pending_changed_elements},
                                {"gates", nlohmann::ordered_json::parse(gates_json)}}
      .dump();
}

RunState RunState::from_json(const std::string& text, const std::string& where) {
  const nlohmann::json json = nlohmann::json::parse(text);
  const auto number = [&](const char* key) {
    if (!json.contains(key) || !json[key].is_number_integer() || json[key] < 0) {
      throw DataError(fmt::format("{}: \"{}\" is missing or not a whole number", where, key));
    }
    return json[key].get<int64_t>();
  };
  if (!json.contains("gates") || !json["gates"].is_array()) {
    throw DataError(fmt::format("{}: \"gates\" is missing or not a list", where));
  }
  return {.step = number("step"),
          .next_draw_index = number("next_draw_index"),
          .optimizer_steps = number("optimizer_steps"),
          .seed = number("seed"),
          .pending_changed_elements = number("pending_changed_elements"),
          .gates_json = json["gates"].dump()};
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
  if (model::is_present(std::filesystem::path(resume) / "manifest.json")) return resume;
  const auto found = parallel::finished_checkpoints(resume);
  if (found.empty()) {
    throw ConfigError(
        fmt::format("--resume {}: no finished checkpoint there; allowed: a folder step_N with "
                    "manifest.json, a folder of "
                    "such folders, or auto",
                    resume));
  }
  return found.back();
}

void remove_old_checkpoints(const std::filesystem::path& parent, int64_t keep_last) {
  if (keep_last == 0) return;
  const auto found = parallel::finished_checkpoints(parent);
  for (size_t i = 0; i + static_cast<size_t>(keep_last) < found.size(); ++i) {
    parallel::remove_checkpoint(found[i]);
  }
}

}  // namespace grpo::rl
