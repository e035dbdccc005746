#include "model/core/use_schedule.h"

#include <algorithm>

namespace grpo {

int UseSchedule::num_contributions(ParameterId parameter) const {
  return static_cast<int>(std::count_if(uses_.begin(), uses_.end(), [&](const ParameterUse& use) {
    return use.parameter == parameter && use.contributes_gradient;
  }));
}

}  // namespace grpo
