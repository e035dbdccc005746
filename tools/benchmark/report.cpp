#include "tools/benchmark/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace grpo::benchmark {

namespace {

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

// Four digits, no exponent.
std::string number(double value) {
  if (value >= 1000) return fmt::format("{:.0f}", value);
  if (value >= 100) return fmt::format("{:.1f}", value);
  if (value >= 10) return fmt::format("{:.2f}", value);
  if (value >= 1) return fmt::format("{:.3f}", value);
  return fmt::format("{:.4f}", value);
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

// Columns as wide as their widest cell; the first is text, the others are numbers.
std::string table(const std::vector<std::vector<std::string>>& rows, size_t num_text_columns) {
  std::vector<size_t> widths(rows.front().size(), 3);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < widths.size(); ++i) {
      text += i < num_text_columns ? fmt::format("| {:<{}} ", rows[r][i], widths[i])
                                   : fmt::format("| {:>{}} ", rows[r][i], widths[i]);
    }
    text += "|\n";
    if (r != 0) continue;
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string dashes(widths[i] + (i < num_text_columns ? 2 : 1), '-');
      text += "|" + dashes + (i < num_text_columns ? "" : ":");
    }
    text += "|\n";
  }
  return text;
}

std::string phase_table(const std::vector<PhaseRow>& phases) {
  std::vector<std::vector<std::string>> rows{
      {"measured", "phase", "ms", "tokens/s", "floor ms", "share of floor", "peak GiB"}};
  for (const PhaseRow& p : phases) {
    rows.push_back({p.section, p.phase, number(1e3 * p.seconds),
                    p.tokens ? number(*p.tokens / p.seconds) : "",
                    p.floor_seconds ? number(1e3 * *p.floor_seconds) : "",
                    p.floor_seconds ? percent(*p.floor_seconds / p.seconds) : "",
                    p.peak_bytes ? number(static_cast<double>(*p.peak_bytes) / kGibibyte) : ""});
  }
  return table(rows, 2);
}

std::string kernel_table(const Report& report) {
  std::vector<std::vector<std::string>> rows{{"operator", "phase", "calls a step", "us a call",
                                              "ms a step", "TFLOP/s", "TB/s", "share of floor",
                                              "lost ms a step"}};
  double total = 0;
  double total_floor = 0;
  for (const KernelRow& kernel : report.kernels) {
    const OperatorWork& op = kernel.operation;
    const double floor = report.ceilings.floor_seconds(op.work);
    total += op.calls * kernel.seconds;
    total_floor += op.calls * floor;
    rows.push_back({op.name, phase_name(op.phase), number(op.calls), number(1e6 * kernel.seconds),
                    number(1e3 * op.calls * kernel.seconds),
                    op.work.flops > 0 ? number(op.work.flops / kernel.seconds / 1e12) : "",
                    number(op.work.bytes / kernel.seconds / 1e12), percent(floor / kernel.seconds),
                    number(1e3 * op.calls * std::max(0.0, kernel.seconds - floor))});
  }
  rows.push_back({"sum", "", "", "", number(1e3 * total), "", "", percent(total_floor / total),
                  number(1e3 * std::max(0.0, total - total_floor))});
  return table(rows, 2);
}

std::string product_table(const std::vector<ProductRow>& products) {
  std::vector<std::vector<std::string>> rows{
      {"product", "algorithm", "rank", "us", "TFLOP/s", "ms a step less than rank 0"}};
  double first_seconds = 0;
  for (const ProductRow& p : products) {
    if (p.rank == 0) first_seconds = p.seconds;
    rows.push_back({p.operation.name, p.algorithm, fmt::format("{}", p.rank),
                    number(1e6 * p.seconds), number(p.operation.work.flops / p.seconds / 1e12),
                    fmt::format("{:.2f}", 1e3 * p.operation.calls * (first_seconds - p.seconds))});
  }
  return table(rows, 2);
}

}  // namespace

void sort_kernels(std::vector<KernelRow>& kernels) {
  const auto step_seconds = [](const KernelRow& row) { return row.operation.calls * row.seconds; };
  std::stable_sort(kernels.begin(), kernels.end(), [&](const KernelRow& a, const KernelRow& b) {
    return step_seconds(a) > step_seconds(b);
  });
}

std::string to_markdown(const Report& report) {
  std::string text;
  for (const auto& [name, value] : report.setting) text += fmt::format("* {}: {}\n", name, value);
  if (!report.kernels.empty()) text += "\n" + kernel_table(report);
  if (!report.products.empty()) text += "\n" + product_table(report.products);
  if (!report.phases.empty()) text += "\n" + phase_table(report.phases);
  return text;
}

std::string to_json(const Report& report) {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : report.setting) json["setting"][name] = value;
  json["ceilings"] = {{"flops_per_second", report.ceilings.flops_per_second},
                      {"bytes_per_second", report.ceilings.bytes_per_second}};
  json["phases"] = nlohmann::ordered_json::array();
  for (const PhaseRow& p : report.phases) {
    nlohmann::ordered_json row{{"section", p.section}, {"phase", p.phase}, {"seconds", p.seconds}};
    if (p.tokens) row["tokens_per_second"] = *p.tokens / p.seconds;
    if (p.floor_seconds) {
      row["floor_seconds"] = *p.floor_seconds;
      row["share_of_floor"] = *p.floor_seconds / p.seconds;
    }
    if (p.peak_bytes) row["peak_bytes"] = *p.peak_bytes;
    json["phases"].push_back(row);
  }
  json["kernels"] = nlohmann::ordered_json::array();
  for (const KernelRow& kernel : report.kernels) {
    const OperatorWork& op = kernel.operation;
    json["kernels"].push_back(
        {{"operator", op.name},
         {"phase", phase_name(op.phase)},
         {"calls_per_step", op.calls},
         {"seconds_per_call", kernel.seconds},
         {"flops", op.work.flops},
         {"bytes", op.work.bytes},
         {"share_of_floor", report.ceilings.floor_seconds(op.work) / kernel.seconds}});
  }
  json["products"] = nlohmann::ordered_json::array();
  for (const ProductRow& p : report.products) {
    json["products"].push_back({{"operator", p.operation.name},
                                {"rank", p.rank},
                                {"seconds_per_call", p.seconds},
                                {"flops", p.operation.work.flops},
                                {"algorithm", p.algorithm}});
  }
  return json.dump(2) + "\n";
}

}  // namespace grpo::benchmark
