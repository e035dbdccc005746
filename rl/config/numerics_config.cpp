#include "rl/config/numerics_config.h"

#include <fmt/ranges.h>

#include "model/core/errors.h"

namespace grpo::rl {

void NumericsConfig::visit(ConfigVisitor& visitor) {
  visit_mode(visitor);
  visitor.choice("inject_fault", inject_fault, generation::injected_fault_names(),
                 "breaks one thing of generation on purpose, to show that the exactness check "
                 "notices");
}

void NumericsConfig::visit_mode(ConfigVisitor& visitor) {
  visitor.choice("mode", mode, {"exact", "fast"},
                 "exact: training and generation give the same bits; fast: any kernel may be used");
}

}  // namespace grpo::rl
