// Gates: bounds on metrics, checked after each step.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/core/config_visitor.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

struct GateConfig {
  std::string metric;              // "train/token_mult_prob_error"
  std::string reduction = "last";  // last, max, mean, median over the window
  int64_t window = 0;              // last steps taken in; 0: all so far
  std::optional<double> min;       // value must be >= min
  std::optional<double> max;       // value must be <= max
  std::string action =
      "fail";  // warn: say so; fail: finish, then exit 4; stop: end the run now, exit 4

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

struct GateTrip {
  size_t gate;
  int64_t step;
  double value;         // the reduced value
  std::string message;  // "gate train/token_mult_prob_error: max 1.1011 > 1.05 at step 3"
};

struct GateSummary {
  std::string label;  // "max(train/token_mult_prob_error) <= 1.05"
  std::string action;
  int64_t num_trips;
  double worst;  // farthest out of bounds, or closest to them; NaN while num_checked is 0
  int64_t worst_step;
  int64_t num_checked;
};

// A non-finite value of a gated metric trips, in its own step and in every later one whose window
// (of steps, not of values) holds it. `max` over all steps keeps tripping once it is out of bounds.
// Deterministic; one thread.
class GateKeeper {
 public:
  // Throws ConfigError when a gate names a metric that is not in `known_metrics` (with the nearest
  // name).
  GateKeeper(const std::vector<GateConfig>& gates, const std::set<std::string>& known_metrics);

  // Trips of this step. A gated metric absent from a step (validation between periods) is not
  // checked then.
  std::vector<GateTrip> check(int64_t step, const MetricSet& metrics);
  std::vector<GateSummary> summary() const;
  // Everything checked so far, as a JSON list; restore() takes it back after a resume. Gates whose
  // label or action changed start fresh. Throws DataError for a list of another form.
  std::string state_json() const;
  void restore(const std::string& state_json);
  // Some gate with action fail or stop has tripped.
  bool failed() const { return failed_; }
  const std::vector<GateConfig>& gates() const { return gates_; }

 private:
  std::vector<GateConfig> gates_;
  std::vector<std::vector<std::pair<int64_t, double>>> history_;
  std::vector<GateSummary> summaries_;
  bool failed_ = false;
};

}  // namespace grpo::rl
