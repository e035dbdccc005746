#include "app/output/run_files.h"

#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "app/text/gzip.h"
#include "model/core/errors.h"
#include "model/files/json_text.h"

namespace grpo::app {

namespace {

std::string json_number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  return fmt::format("{}", value);
}

// The step of samples/step_N.jsonl, .jsonl.gz and .kept; nullopt for other names.
std::optional<int64_t> sample_step(const std::string& name) {
  int64_t step = 0;
  if (!name.starts_with("step_")) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + 5, end, step);
  const std::string_view ending(rest, end);
  const bool matches =
      error == std::errc() && (ending == ".jsonl" || ending == ".jsonl.gz" || ending == ".kept");
  return matches ? std::optional(step) : std::nullopt;
}

void remove_samples_after(const std::filesystem::path& log_dir, int64_t last_step) {
  const std::filesystem::path samples = log_dir / "samples";
  if (!std::filesystem::is_directory(samples)) return;
  std::vector<std::filesystem::path> old;
  for (const auto& entry : std::filesystem::directory_iterator(samples)) {
    const std::optional<int64_t> step = sample_step(entry.path().filename().string());
    if (step && *step > last_step) old.push_back(entry.path());
  }
  for (const std::filesystem::path& path : old) std::filesystem::remove(path);
}

// Half-written files of a process that was killed.
void remove_drafts(const std::filesystem::path& log_dir) {
  std::vector<std::filesystem::path> drafts;
  for (const auto& entry : std::filesystem::directory_iterator(log_dir)) {
    const std::string name = entry.path().filename().string();
    for (const char* whole : {"metrics.jsonl", "metrics.json", "config.yaml"}) {
      if (name.starts_with(std::string(whole) + ".partial-")) drafts.push_back(entry.path());
    }
  }
  for (const std::filesystem::path& path : drafts) std::filesystem::remove(path);
}

}  // namespace

void refuse_used_log_dir(const std::filesystem::path& log_dir, bool overwrite) {
  // A run that failed before its first line leaves an empty file: nothing is lost.
  std::error_code error;
  const auto bytes = std::filesystem::file_size(log_dir / "metrics.jsonl", error);
  if (!overwrite && !error && bytes > 0) {
    throw ConfigError(
        fmt::format("logger.log_dir {} holds the metrics.jsonl of an earlier run; allowed: another "
                    "folder, --resume auto to go "
                    "on from its checkpoints, or logger.overwrite=true to replace that run's files",
                    log_dir.string()));
  }
}

RunFiles::RunFiles(std::filesystem::path log_dir, const EarlierRun& earlier)
    : log_dir_(std::move(log_dir)), earlier_(earlier) {
  refuse_used_log_dir(log_dir_, earlier.overwrite || earlier.continue_after.has_value());
  std::error_code error;
  std::filesystem::create_directories(log_dir_, error);
  if (error)
    throw DataError(fmt::format("logger.log_dir {}: {}", log_dir_.string(), error.message()));
  if (earlier.continue_after) read_steps(*earlier.continue_after);
}

void RunFiles::read_steps(int64_t last_step) {
  const std::filesystem::path path = log_dir_ / "metrics.jsonl";
  std::ifstream file(path);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const std::string where = fmt::format("{}:{}", path.string(), number);
    try {
      read_step(line, where, last_step);
    } catch (const nlohmann::json::exception&) {
      // A run that died may leave half of its last line; anything before it is damage.
      if (file.peek() == std::ifstream::traits_type::eof()) continue;
      throw DataError(where + ": not a line of metrics");
    }
  }
  if (newest_step_ && *newest_step_ < last_step) {
    warnings_.push_back(fmt::format("{}: steps {} to {} are missing, the checkpoint is of step {}",
                                    path.string(), *newest_step_ + 1, last_step, last_step));
  }
}

void RunFiles::read_step(const std::string& line, const std::string& where, int64_t last_step) {
  const auto metrics = nlohmann::ordered_json::parse(line);
  const auto step = metrics.at("step").get<int64_t>();
  const int64_t expected = newest_step_ ? *newest_step_ + 1 : 0;
  if (step < expected) {
    throw DataError(fmt::format(
        "{}: step {} after step {}: two runs wrote into this file; allowed: each step once, in "
        "order",
        where, step, expected - 1));
  }
  if (step > last_step) return;
  if (newest_step_ && step > expected) {
    warnings_.push_back(
        fmt::format("{}: steps {} to {} are missing before it", where, expected, step - 1));
  }
  newest_step_ = step;
  kept_lines_ += line + "\n";
  for (const auto& [name, value] : metrics.items()) {
    if (name == "step") continue;
    add_to_series(step, name, value.is_number() ? json_number(value.get<double>()) : value.dump());
  }
}

// Before the first write: the folder becomes this run's.
void RunFiles::begin() {
  if (metrics_lines_) return;
  try {
    std::filesystem::create_directories(log_dir_ / "samples");
    remove_drafts(log_dir_);
    remove_samples_after(log_dir_, earlier_.continue_after.value_or(-1));
    if (!earlier_.continue_after) {
      for (const char* name : {"metrics.json", "config.yaml"})
        std::filesystem::remove(log_dir_ / name);
    }
  } catch (const std::filesystem::filesystem_error& error) {
    throw DataError(fmt::format("logger.log_dir {}: {}: {}", log_dir_.string(),
                                error.path1().string(), error.code().message()));
  }
  write_whole_file(log_dir_ / "metrics.jsonl", kept_lines_);
  metrics_lines_.emplace(log_dir_ / "metrics.jsonl");
}

void RunFiles::add_to_series(int64_t step, const std::string& name, const std::string& number) {
  const auto [series, is_new] = series_.try_emplace(name);
  if (is_new) names_.push_back(name);
  series->second += fmt::format("{}\"{}\": {}", is_new ? "" : ", ", step, number);
}

void RunFiles::write_config(const std::string& yaml) {
  begin();
  write_whole_file(log_dir_ / "config.yaml", yaml);
}

void RunFiles::write_step(int64_t step, const rl::MetricSet& metrics) {
  begin();
  std::string line = fmt::format("{{\"step\": {}", step);
  for (const auto& [name, value] : metrics.values()) {
    const std::string number = json_number(value);
    line += fmt::format(", {}: {}", model::json_string(name), number);
    add_to_series(step, name, number);
  }
  metrics_lines_->write_line(line + "}");
  metrics_lines_->sync();  // a checkpoint of this step must not outlive its line
  write_whole_file(log_dir_ / "metrics.json", metrics_json());
}

std::string RunFiles::metrics_json() const {
  std::string text = "{";
  for (const std::string& name : names_) {
    text += fmt::format("{}\n  {}: {{{}}}", text.size() == 1 ? "" : ",", model::json_string(name),
                        series_.at(name));
  }
  return text + "\n}\n";
}

void RunFiles::write_samples(int64_t step, const rl::SampleBatch& samples, bool compress) {
  begin();
  if (samples.num_recorded == 0) return;
  std::string text;
  for (size_t i = 0; i < samples.num_recorded; ++i) text += samples.lines[i] + "\n";
  const std::filesystem::path stem = log_dir_ / "samples" / fmt::format("step_{}", step);
  if (!samples.kept_tokens.empty()) {
    write_whole_file(stem.string() + ".kept", gzip(samples.kept_tokens));
  }
  if (compress) {
    write_whole_file(stem.string() + ".jsonl.gz", gzip(std::as_bytes(std::span(text))));
  } else {
    write_whole_file(stem.string() + ".jsonl", text);
  }
}

}  // namespace grpo::app
