// UseSchedule: the declared order in which one kind of pass uses the parameters.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/core/parameter_spec.h"

namespace grpo {

enum class UsePhase : uint8_t { kForward, kBackward };

struct ParameterUse {
  ParameterId parameter;
  UsePhase phase;
  bool reads_weight;          // materialized (gathered) for this use
  bool contributes_gradient;  // one begin_grad/finish_grad pair happens in this use
};

// Immutable once built. The n-th entry is the n-th use of a pass; a parameter used twice appears
// twice.
class UseSchedule {
 public:
  explicit UseSchedule(std::vector<ParameterUse> uses) : uses_(std::move(uses)) {}

  const std::vector<ParameterUse>& uses() const { return uses_; }
  // How many gradient contributions a parameter receives in one pass.
  int num_contributions(ParameterId parameter) const;

 private:
  std::vector<ParameterUse> uses_;
};

}  // namespace grpo
