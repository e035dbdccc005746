#include "rl/state/metrics.h"

#include "model/core/errors.h"

namespace grpo::rl {

void MetricSet::set(const std::string& name, double value) {
  CHECK(!get(name), "metric {} is set twice in a step", name);
  values_.emplace_back(name, value);
}

std::optional<double> MetricSet::get(const std::string& name) const {
  for (const auto& [known, value] : values_)
    if (known == name) return value;
  return std::nullopt;
}

}  // namespace grpo::rl
