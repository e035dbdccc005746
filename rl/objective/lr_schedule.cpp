#include "rl/objective/lr_schedule.h"

#include <cmath>
#include <numbers>

#include "model/core/config_check.h"
#include "model/core/config_range.h"
#include "model/core/errors.h"

namespace grpo::rl {

void SchedulerConfig::visit(ConfigVisitor& visitor) {
  visitor.choice("name", name, {"constant", "linear", "cosine"}, "decay after the warm-up");
  visitor.field("warmup_steps", warmup_steps, "optimizer steps of linear warm-up");
  visitor.field("decay_steps", decay_steps,
                "optimizer steps, warm-up included, after which min_lr_ratio is reached; 0: all of "
                "the run's");
  visitor.field("min_lr_ratio", min_lr_ratio, "lowest rate, as a share of the base rate");
}

void SchedulerConfig::validate(const ConfigVisitor& visitor) const {
  // A step of the loop may hold several optimizer steps.
  require_range<int64_t>(visitor, "warmup_steps", warmup_steps, 0, kMaxSteps * kMaxSequences);
  require_range<int64_t>(visitor, "decay_steps", decay_steps, 0, kMaxSteps * kMaxSequences);
  require_range(visitor, "min_lr_ratio", min_lr_ratio, 0.0, 1.0);
  check_config(name != "constant" || decay_steps == 0, visitor, "decay_steps",
               fmt::format("{} has no effect with name: constant; allowed: 0", decay_steps));
  check_config(name != "constant" || min_lr_ratio == 0, visitor, "min_lr_ratio",
               fmt::format("{} has no effect with name: constant; allowed: 0", min_lr_ratio));
  check_config(
      decay_steps == 0 || decay_steps > warmup_steps, visitor, "decay_steps",
      fmt::format("{} is neither 0 nor above warmup_steps ({})", decay_steps, warmup_steps));
}

double lr_factor(const SchedulerConfig& config, int64_t step, int64_t total_steps) {
  CHECK(step >= 0, "step {}", step);
  if (step < config.warmup_steps)
    return static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  if (config.name == "constant") return 1.0;
  const int64_t end = config.decay_steps > 0 ? config.decay_steps : total_steps;
  if (step >= end) return config.min_lr_ratio;
  const double progress = static_cast<double>(step - config.warmup_steps) /
                          static_cast<double>(end - config.warmup_steps);
  double remaining = 1.0 - progress;
  if (config.name == "cosine") remaining = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * remaining;
}

}  // namespace grpo::rl
