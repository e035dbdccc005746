#include "rl/state/early_stop.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/core/config_range.h"
#include "model/core/errors.h"

namespace grpo::rl {

void EarlyStopConfig::visit(ConfigVisitor& visitor) {
  visitor.field(
      "metric", metric,
      "the run ends when this metric stops improving, also as val:accuracy; \"\" for none");
  visitor.field("higher_is_better", higher_is_better,
                "an improvement is a higher value; false: a lower one");
  visitor.field("patience", patience, "values in a row without an improvement that end the run");
  visitor.field("min_delta", min_delta, "an improvement is larger than this");
}

void EarlyStopConfig::validate(const ConfigVisitor& visitor) const {
  require_range<int64_t>(visitor, "patience", patience, 1, kMaxSteps);
  require_range(visitor, "min_delta", min_delta, 0.0, 1e30);
}

bool EarlyStop::is_improvement(double value) const {
  if (!std::isfinite(value)) return false;
  if (!has_best_) return true;
  return config_.higher_is_better ? value > best_ + config_.min_delta
                                  : value < best_ - config_.min_delta;
}

void EarlyStop::observe(int64_t step, const MetricSet& metrics) {
  const std::optional<double> value = metrics.get(config_.metric);
  if (!config_.is_on() || !value) return;
  if (!is_improvement(*value)) {
    ++num_waited_;
    return;
  }
  has_best_ = true;
  best_ = *value;
  best_step_ = step;
  num_waited_ = 0;
}

std::string EarlyStop::message() const {
  if (!has_best_) {
    return fmt::format("{} had no finite value in {} steps that measured it", config_.metric,
                       num_waited_);
  }
  return fmt::format("{} was best with {} at step {}; {} value{} since then {} no improvement",
                     config_.metric, best_, best_step_, num_waited_, num_waited_ == 1 ? "" : "s",
                     num_waited_ == 1 ? "is" : "are");
}

// The best value is text: the shortest that reads back to the same double.
std::string EarlyStop::state_json() const {
  return nlohmann::ordered_json{{"metric", config_.metric},
                                {"higher_is_better", config_.higher_is_better},
                                {"best", has_best_ ? fmt::format("{}", best_) : ""},
                                {"best_step", best_step_},
                                {"num_waited", num_waited_}}
      .dump();
}

void EarlyStop::restore(const std::string& state_json) {
  try {
    const auto saved = nlohmann::json::parse(state_json);
    if (saved.empty()) return;
    if (saved.at("metric") != config_.metric ||
        saved.at("higher_is_better") != config_.higher_is_better) {
      return;
    }
    const auto best = saved.at("best").get<std::string>();
    has_best_ = !best.empty();
    best_ = has_best_ ? std::stod(best) : 0;
    best_step_ = saved.at("best_step").get<int64_t>();
    num_waited_ = saved.at("num_waited").get<int64_t>();
  } catch (const std::exception& error) {
    throw DataError(
        fmt::format("the checkpoint's early-stop state cannot be read: {}", error.what()));
  }
}

}  // namespace grpo::rl
