// NumericsConfig: exact or fast numerics, and faults that are injected to test the exactness
// checks.
#pragma once

#include <string>

#include "generation/injected_fault.h"
#include "model/core/config_visitor.h"
#include "model/ops/op_context.h"

namespace grpo::rl {

struct NumericsConfig {
  std::string mode = "exact";
  std::string inject_fault = "none";

  void visit(ConfigVisitor& visitor);
  // What is left of it where nothing trains.
  void visit_mode(ConfigVisitor& visitor);

  bool is_exact() const { return mode == "exact"; }
  generation::InjectedFault fault() const { return generation::injected_fault_named(inject_fault); }
  // For the contexts of all operators; a fault changes the engine's own.
  Numerics operators() const {
    return {.split_k = is_exact() ? SplitK::kNever : SplitK::kAllowed, .narrow_kv_tiles = false};
  }
};

}  // namespace grpo::rl
