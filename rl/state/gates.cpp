#include "rl/state/gates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/core/config_check.h"
#include "model/core/config_range.h"
#include "model/core/nearest_name.h"

namespace grpo::rl {

void GateConfig::visit(ConfigVisitor& visitor) {
  visitor.field("metric", metric, "name of the metric, as in metrics.json");
  visitor.choice("reduction", reduction, {"last", "max", "mean", "median"},
                 "how the window's values become one");
  visitor.field("window", window, "last steps that are looked at; 0: all so far");
  visitor.field("min", min, "the reduced value must be at least this; null for none");
  visitor.field("max", max, "the reduced value must be at most this; null for none");
  visitor.choice("action", action, {"warn", "fail", "stop"},
                 "warn: say so; fail: finish, then exit 4; stop: end the run now, exit 4");
}

void GateConfig::validate(const ConfigVisitor& visitor) const {
  check_config(!metric.empty(), visitor, "metric", "a gate needs the name of a metric");
  require_range<int64_t>(visitor, "window", window, 0, kMaxSteps);
  check_config(reduction != "last" || window <= 1, visitor, "window",
               fmt::format("{} has no effect with reduction: last; allowed: 0, 1", window));
  check_config(min || max, visitor, "min", "a gate needs a bound: min, max or both");
  check_config(!min || !std::isnan(*min), visitor, "min", "nan is not a number");
  check_config(!max || !std::isnan(*max), visitor, "max", "nan is not a number");
  check_config(!min || !max || *min <= *max, visitor, "min",
               fmt::format("{} is above max ({})", min.value_or(0), max.value_or(0)));
}

namespace {

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

// NaN as soon as one value is not finite.
double reduce(const std::string& reduction, const std::vector<double>& values) {
  for (const double value : values)
    if (!std::isfinite(value)) return std::numeric_limits<double>::quiet_NaN();
  if (reduction == "last") return values.back();
  if (reduction == "max") return *std::max_element(values.begin(), values.end());
  if (reduction == "median") return median_of(values);
  CHECK(reduction == "mean", "reduction \"{}\"", reduction);
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::string label_of(const GateConfig& gate) {
  const std::string window = gate.window > 0 ? fmt::format(", last {}", gate.window) : "";
  std::string label = fmt::format("{}({}{})", gate.reduction, gate.metric, window);
  if (gate.min && gate.max) return fmt::format("{} <= {} <= {}", *gate.min, label, *gate.max);
  return gate.min ? fmt::format("{} >= {}", label, *gate.min)
                  : fmt::format("{} <= {}", label, *gate.max);
}

// How far a value is outside the bounds; negative inside; +inf for one that is not finite.
double excess(const GateConfig& gate, double value) {
  if (!std::isfinite(value)) return std::numeric_limits<double>::infinity();
  double largest = -std::numeric_limits<double>::infinity();
  if (gate.max) largest = std::max(largest, value - *gate.max);
  if (gate.min) largest = std::max(largest, *gate.min - value);
  return largest;
}

std::string describe_trip(const GateConfig& gate, int64_t step, double value) {
  std::string what = fmt::format("gate {}: {} {}", gate.metric, gate.reduction, value);
  if (!std::isfinite(value))
    what += " is not finite";
  else if (gate.max && value > *gate.max)
    what += fmt::format(" > {}", *gate.max);
  else
    what += fmt::format(" < {}", *gate.min);
  return fmt::format("{} at step {}", what, step);
}

}  // namespace

GateKeeper::GateKeeper(const std::vector<GateConfig>& gates,
                       const std::set<std::string>& known_metrics)
    : gates_(gates), history_(gates.size()) {
  for (const GateConfig& gate : gates_) {
    if (!known_metrics.contains(gate.metric)) {
      const std::vector<std::string> names(known_metrics.begin(), known_metrics.end());
      throw ConfigError(fmt::format("gates: this run has no metric \"{}\"; the nearest is \"{}\"",
                                    gate.metric, nearest_name(gate.metric, names)));
    }
    summaries_.push_back({.label = label_of(gate),
                          .action = gate.action,
                          .num_trips = 0,
                          .worst = std::numeric_limits<double>::quiet_NaN(),
                          .worst_step = 0,
                          .num_checked = 0});
  }
}

std::vector<GateTrip> GateKeeper::check(int64_t step, const MetricSet& metrics) {
  std::vector<GateTrip> trips;
  for (size_t i = 0; i < gates_.size(); ++i) {
    const GateConfig& gate = gates_[i];
    const std::optional<double> current = metrics.get(gate.metric);
    if (!current) continue;
    history_[i].emplace_back(step, *current);
    std::vector<double> window;
    for (const auto& [past_step, value] : history_[i])
      if (gate.window == 0 || past_step > step - gate.window) window.push_back(value);
    // The current value itself is shown when it is what is not finite.
    const double value = std::isfinite(*current) && gate.reduction != "last"
                             ? reduce(gate.reduction, window)
                             : *current;

    GateSummary& summary = summaries_[i];
    if (summary.num_checked++ == 0 || excess(gate, value) > excess(gate, summary.worst)) {
      summary.worst = value;
      summary.worst_step = step;
    }
    if (excess(gate, value) <= 0) continue;
    ++summary.num_trips;
    failed_ = failed_ || gate.action != "warn";
    trips.push_back(
        {.gate = i, .step = step, .value = value, .message = describe_trip(gate, step, value)});
  }
  return trips;
}

std::vector<GateSummary> GateKeeper::summary() const { return summaries_; }

}  // namespace grpo::rl
