#include "app/run_files.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/core/errors.h"

namespace grpo::app {

namespace {

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  return fmt::format("{}", value);
}

void remove_earlier_run(const std::filesystem::path& log_dir) {
  for (const char* name : {"metrics.jsonl", "metrics.json", "config.yaml"}) {
    std::filesystem::remove(log_dir / name);
  }
  const std::filesystem::path samples = log_dir / "samples";
  if (!std::filesystem::is_directory(samples)) return;
  std::vector<std::filesystem::path> old;
  for (const auto& entry : std::filesystem::directory_iterator(samples)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step_") && name.ends_with(".jsonl")) old.push_back(entry.path());
  }
  for (const std::filesystem::path& path : old) std::filesystem::remove(path);
}

}  // namespace

void refuse_used_log_dir(const std::filesystem::path& log_dir, bool overwrite) {
  std::error_code ignored;
  if (!overwrite && std::filesystem::exists(log_dir / "metrics.jsonl", ignored)) {
    throw ConfigError(fmt::format(
        "logger.log_dir {} holds the metrics.jsonl of an earlier run; allowed: another folder, or "
        "logger.overwrite=true to replace that run's files",
        log_dir.string()));
  }
}

RunFiles::RunFiles(std::filesystem::path log_dir, bool overwrite) : log_dir_(std::move(log_dir)) {
  refuse_used_log_dir(log_dir_, overwrite);
  try {
    std::filesystem::create_directories(log_dir_ / "samples");
    remove_earlier_run(log_dir_);
  } catch (const std::filesystem::filesystem_error& error) {
    throw ConfigError(fmt::format("logger.log_dir {}: {}: {}", log_dir_.string(),
                                  error.path1().string(), error.code().message()));
  }
  metrics_lines_.emplace(log_dir_ / "metrics.jsonl");
}

void RunFiles::write_config(const std::string& yaml) const {
  write_whole_file(log_dir_ / "config.yaml", yaml);
}

void RunFiles::write_step(int64_t step, const rl::MetricSet& metrics) {
  std::string line = fmt::format("{{\"step\": {}", step);
  for (const auto& [name, value] : metrics.values()) {
    const std::string number = json_number(value);
    line += fmt::format(", {}: {}", json_string(name), number);
    const auto [series, is_new] = series_.try_emplace(name);
    if (is_new) names_.push_back(name);
    series->second += fmt::format("{}\"{}\": {}", is_new ? "" : ", ", step, number);
  }
  metrics_lines_->write_line(line + "}");
  write_whole_file(log_dir_ / "metrics.json", metrics_json());
}

std::string RunFiles::metrics_json() const {
  std::string text = "{";
  for (const std::string& name : names_) {
    text += fmt::format("{}\n  {}: {{{}}}", text.size() == 1 ? "" : ",", json_string(name),
                        series_.at(name));
  }
  return text + "\n}\n";
}

void RunFiles::write_sample(int64_t step, const std::string& json_line) {
  if (step != samples_step_) {
    samples_.emplace(log_dir_ / "samples" / fmt::format("step_{}.jsonl", step));
    samples_step_ = step;
  }
  samples_->write_line(json_line);
}

}  // namespace grpo::app
