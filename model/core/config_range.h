// The range of a config value, checked by validate(). A bound keeps every product of sizes inside
// 64 bits and every count inside the type that the code below uses for it.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/core/config_visitor.h"
#include "model/core/errors.h"

namespace grpo {

// Steps, periods and windows: counts that nothing is allocated for.
inline constexpr int64_t kMaxSteps = int64_t{1} << 31;
// Tokens of a sequence; the work of planning one grows with the square of its length.
inline constexpr int64_t kMaxSequenceTokens = int64_t{1} << 20;
// Tokens of a batch.
inline constexpr int64_t kMaxTokens = int64_t{1} << 24;
// Sequences of a step.
inline constexpr int64_t kMaxSequences = int64_t{1} << 20;

// Throws ConfigError "<place>: <key> is <value>; allowed: <least> to <most>" for a value outside;
// NaN is outside.
template <typename Number>
void require_range(const ConfigVisitor& visitor, std::string_view key, Number value, Number least,
                   Number most) {
  if (!(value >= least && value <= most)) {
    throw ConfigError(
        fmt::format("{} is {}; allowed: {} to {}", visitor.where(key), value, least, most));
  }
}

// The same for numbers that 0 is allowed beside the range, with what 0 means.
inline void require_zero_or_range(const ConfigVisitor& visitor, std::string_view key, double value,
                                  double least, double most) {
  if (value != 0.0 && !(value >= least && value <= most)) {
    throw ConfigError(
        fmt::format("{} is {}; allowed: 0, and {} to {}", visitor.where(key), value, least, most));
  }
}

}  // namespace grpo
