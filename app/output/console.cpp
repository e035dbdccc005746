#include "app/output/console.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/config/config_node.h"

namespace grpo::app {

namespace {

struct Cell {
  const char* label;
  const char* metric;
  const char* of = nullptr;  // "value of this metric's"
  bool is_whole = false;     // every digit: 1.0000000001 must not look like 1
};

// Rows of the step block; a cell whose metric the step does not have is left out.
const std::vector<std::vector<Cell>>& step_rows() {
  static const std::vector<std::vector<Cell>> rows = {
      {{"reward", "train/reward"},
       {"mixed groups", "train/baseline_reward/pct_mixed"},
       {"truncated", "train/truncation_rate"}},
      {{"loss", "train/loss"}, {"grad_norm", "train/grad_norm"}, {"lr", "train/lr"}},
      {{"token_mult_prob_error", "train/token_mult_prob_error", nullptr, true},
       {"mismatches", "train/mismatch_count", "train/mismatch_tokens_checked"},
       {"gen_kl_error", "train/gen_kl_error"}},
      {{"response tokens", "train/mean_gen_tokens_per_sample"},
       {"longest", "train/max_gen_tokens_per_sample"},
       {"prompt", "train/mean_prompt_length"}},
      {{"tokens/s a rank", "performance/tokens_per_sec_per_gpu"},
       {"generation", "performance/generation_tokens_per_sec_per_gpu"},
       {"training", "performance/policy_training_tokens_per_sec_per_gpu"}},
      {{"step seconds", "timing/train/total_step_time"},
       {"generation", "timing/train/generation"},
       {"training", "timing/train/policy_training"}},
      {{"refit seconds", "timing/train/prepare_for_generation/transfer_and_update_weights"},
       {"log-probs", "timing/train/policy_and_reference_logprobs"},
       {"reward", "timing/train/reward_calculation"}},
  };
  return rows;
}

std::string cell_value(const Cell& cell, const rl::MetricSet& metrics, double value) {
  if (cell.is_whole) return fmt::format("{}", value);
  std::string text = fmt::format("{:.5g}", value);
  if (cell.of != nullptr) {
    if (const auto of = metrics.get(cell.of)) text = fmt::format("{} of {}", value, *of);
  }
  return text;
}

std::string step_block(const rl::MetricSet& metrics) {
  std::string block;
  for (const std::vector<Cell>& row : step_rows()) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const auto value = metrics.get(row[i].metric);
      if (!value) continue;
      line += fmt::format("  {:<{}} {:>12}", row[i].label, i == 0 ? 22 : 13,
                          cell_value(row[i], metrics, *value));
    }
    if (!line.empty()) block += "\n" + line;
  }
  return block;
}

}  // namespace

Console::Console(std::ostream& out, bool is_terminal)
    : out_(out),
      is_terminal_(is_terminal),
      logger_(std::make_shared<spdlog::logger>(
          "console", std::make_shared<spdlog::sinks::ostream_sink_mt>(out, true))) {
  logger_->set_pattern("[%Y-%m-%d %H:%M:%S] %v");
}

Console::~Console() { clear_progress(); }

void Console::clear_progress() {
  if (has_progress_) out_ << "\r\x1b[K" << std::flush;
  has_progress_ = false;
}

void Console::message(const std::string& line) {
  clear_progress();
  logger_->info("{}", line);
}

void Console::warning(const std::string& line) {
  clear_progress();
  logger_->warn("warning: {}", line);
}

void Console::error(const std::string& line) {
  clear_progress();
  logger_->error("error: {}", line);
}

void Console::step(int64_t step, int64_t num_steps, const rl::MetricSet& metrics) {
  clear_progress();
  logger_->info("step {} of {}{}", step, num_steps, step_block(metrics));
}

void Console::progress(const std::string& phase, int64_t done, int64_t total) {
  if (!is_terminal_ || total <= 0) return;
  constexpr int64_t kWidth = 32;
  const int64_t filled = std::clamp(done * kWidth / total, int64_t{0}, kWidth);
  out_ << fmt::format("\r\x1b[K{} [{}{}] {}/{}", phase,
                      std::string(static_cast<size_t>(filled), '#'),
                      std::string(static_cast<size_t>(kWidth - filled), '.'), done, total)
       << std::flush;
  has_progress_ = done < total;
  if (!has_progress_) out_ << "\r\x1b[K" << std::flush;
}

void Console::sample(const std::string& json_line) {
  constexpr size_t kLongest = 200;
  const auto sample = nlohmann::json::parse(json_line);
  const auto text = [&](const char* key) {
    return printable(sample.at(key).get<std::string>(), kLongest);
  };
  message(fmt::format("sample \"{}\" -> \"{}\"  answer \"{}\", reward {}, {}", text("prompt"),
                      text("response"), text("answer"), sample.at("reward").get<double>(),
                      text("finish_reason")));
}

void Console::gate_summary(const std::vector<rl::GateSummary>& gates) {
  if (gates.empty()) return;
  size_t width = 4;
  for (const rl::GateSummary& gate : gates) width = std::max(width, gate.label.size());
  std::string table = fmt::format("gates\n  {:<{}}  {:<6}  {:>7}  {:>5}  {:>12}  {:>7}", "gate",
                                  width, "action", "checked", "trips", "worst", "at step");
  for (const rl::GateSummary& gate : gates) {
    const char* verdict = gate.num_checked == 0 ? "never checked"
                          : gate.num_trips == 0 ? "held"
                                                : "TRIPPED";
    table += gate.num_checked == 0
                 ? fmt::format("\n  {:<{}}  {:<6}  {:>7}  {:>5}  {:>12}  {:>7}  {}", gate.label,
                               width, gate.action, 0, 0, "-", "-", verdict)
                 : fmt::format("\n  {:<{}}  {:<6}  {:>7}  {:>5}  {:>12}  {:>7}  {}", gate.label,
                               width, gate.action, gate.num_checked, gate.num_trips, gate.worst,
                               gate.worst_step, verdict);
  }
  message(table);
}

}  // namespace grpo::app
