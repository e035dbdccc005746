// The error of a row of logits that has no softmax, the same for all devices.
#pragma once

#include <cstdint>

namespace grpo::ops {

// Throws NonFiniteError; `sum` is that of exp(z - largest).
[[noreturn]] void throw_non_finite_row(const char* op, int64_t row, float largest, double sum);

}  // namespace grpo::ops
