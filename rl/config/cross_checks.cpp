#include "rl/config/cross_checks.h"

#include <set>

#include "model/core/config_key_error.h"
#include "model/core/nearest_name.h"
#include "rl/config/known_metrics.h"

namespace grpo::rl {

void check_sft(const RunConfig& config) {
  if (config.policy.train_global_batch_size == 0) {
    throw ConfigKeyError("policy.train_global_batch_size",
                         "is 0; allowed under algorithm: sft: at least 1, the examples of a step");
  }
  if (config.data.train.response_template.empty()) {
    throw ConfigKeyError("data.train.response_template",
                         "is empty: there is nothing for algorithm: sft to learn");
  }
  for (size_t i = 0; i < config.data.validation.size(); ++i) {
    const ValidationDatasetConfig& data = config.data.validation[i];
    if (data.answer_template) {
      throw ConfigKeyError(
          fmt::format("data.validation.{}.answer_template", i),
          fmt::format("is '{}', but nothing reads it: algorithm is sft", *data.answer_template));
    }
    if (data.response_template && data.response_template->empty()) {
      throw ConfigKeyError(fmt::format("data.validation.{}.response_template", i),
                           "is empty: there is nothing for algorithm: sft to measure");
    }
  }
}

void check_validation(const RunConfig& config) {
  const std::vector<ValidationDatasetConfig>& datasets = config.data.validation;
  const ValidationPeriods& periods = config.validation_periods();
  if (datasets.empty()) return;
  if (periods.val_period == 0 && !periods.val_at_start && !periods.val_at_end) {
    throw ConfigKeyError(
        "data.validation",
        fmt::format("is given, but nothing reads it: {0}.val_period is 0, {0}.val_at_start and "
                    "{0}.val_at_end are false",
                    config.algorithm));
  }
  for (size_t i = 0; i < datasets.size(); ++i) {
    for (size_t earlier = 0; earlier < i; ++earlier) {
      if (datasets[earlier].name != datasets[i].name) continue;
      throw ConfigKeyError(fmt::format("data.validation.{}.name", i),
                           fmt::format("is '{}', as that of data.validation.{}; give each its own",
                                       datasets[i].name, earlier));
    }
  }
}

void check_named_metrics(const RunConfig& config) {
  const std::set<std::string> known = known_metric_names(config);
  const auto check = [&](const std::string& key, const std::string& metric) {
    if (known.contains(metric)) return;
    throw ConfigKeyError(
        key,
        fmt::format("is '{}', which this run does not have; nearest: {}", metric,
                    nearest_name(metric, std::vector<std::string>(known.begin(), known.end()))));
  };
  for (size_t i = 0; i < config.gates.size(); ++i) {
    check(fmt::format("gates.{}.metric", i), config.gates[i].metric);
  }
  if (config.early_stop().is_on()) {
    check(config.algorithm + ".early_stop.metric", config.early_stop().metric);
  }
  if (config.checkpointing.metric_name) {
    check("checkpointing.metric_name", *config.checkpointing.metric_name);
  }
}

}  // namespace grpo::rl
