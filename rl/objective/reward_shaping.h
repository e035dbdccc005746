// Reward shaping by response length (DAPO, Yu et al., 2025) and by how a response ended (README,
// "Rewards").
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace grpo::rl {

// Soft penalty on long responses: 0 up to max_response_length - buffer_length, then falling
// linearly to -penalty at max_response_length, and -penalty beyond it. Lengths in tokens.
struct OverlongPenalty {
  int64_t buffer_length;  // above 0, at most max_response_length
  double penalty;
  int64_t max_response_length;
};

// rewards[i] plus the penalty of response_lengths[i]. A penalty that cannot be, or spans of unequal
// length, are an InternalError.
std::vector<double> penalize_overlong(const OverlongPenalty& overlong,
                                      std::span<const int64_t> response_lengths,
                                      std::span<const double> rewards);

// rewards[i] times `coefficient` (0 to 1) where the response was cut off before it stopped by
// itself.
std::vector<double> scale_truncated(double coefficient, const std::vector<bool>& truncated,
                                    std::span<const double> rewards);

}  // namespace grpo::rl
