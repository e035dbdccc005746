// How many of the machine's cores a rank may run on.
#pragma once

#include <string>

#include "model/core/device.h"

namespace grpo::app {

struct UsableCores {
  int own;      // that this process may run on
  int machine;  // that are online
};

UsableCores usable_cores();

// A warning when a rank on `device` is bound to so few cores that its own threads, NCCL's and
// CUDA's wait for each other; "" when it is not, or the machine has no more.
std::string few_cores_warning(Device device, const UsableCores& cores);

}  // namespace grpo::app
