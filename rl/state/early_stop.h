// EarlyStop: ends a run whose metric no longer gets better.
#pragma once

#include <cstdint>
#include <string>

#include "model/core/config_visitor.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

struct EarlyStopConfig {
  std::string metric;  // "validation/accuracy"; "" for none
  bool higher_is_better = true;
  int64_t patience = 5;    // values in a row without an improvement that end the run
  double min_delta = 0.0;  // an improvement is larger than this

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
  bool is_on() const { return !metric.empty(); }
};

// Deterministic; one thread. Steps that lack the metric do not count; a value that is not finite is
// no improvement.
class EarlyStop {
 public:
  explicit EarlyStop(const EarlyStopConfig& config) : config_(config) {}

  void observe(int64_t step, const MetricSet& metrics);
  // The run is to end.
  bool is_due() const { return config_.is_on() && num_waited_ >= config_.patience; }
  // "validation/accuracy was best with 0.53125 at step 40; 3 values since then are no improvement":
  // while is_due().
  std::string message() const;

  // What was seen so far, as a JSON object; restore() takes it back after a resume, unless it
  // belongs to another metric or direction. Throws DataError for an object of another form.
  std::string state_json() const;
  void restore(const std::string& state_json);

 private:
  bool is_improvement(double value) const;

  EarlyStopConfig config_;
  bool has_best_ = false;
  double best_ = 0;
  int64_t best_step_ = 0;
  int64_t num_waited_ = 0;
};

}  // namespace grpo::rl
