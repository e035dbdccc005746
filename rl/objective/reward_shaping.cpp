#include "rl/objective/reward_shaping.h"

#include <algorithm>

#include "model/core/errors.h"

namespace grpo::rl {

std::vector<double> penalize_overlong(const OverlongPenalty& overlong,
                                      std::span<const int64_t> response_lengths,
                                      std::span<const double> rewards) {
  CHECK(response_lengths.size() == rewards.size(), "{} lengths for {} rewards",
        response_lengths.size(), rewards.size());
  CHECK(overlong.buffer_length > 0 && overlong.buffer_length <= overlong.max_response_length,
        "buffer of {} tokens in responses of up to {}", overlong.buffer_length,
        overlong.max_response_length);
  const int64_t free_length = overlong.max_response_length - overlong.buffer_length;
  std::vector<double> shaped(rewards.begin(), rewards.end());
  for (size_t i = 0; i < shaped.size(); ++i) {
    const int64_t excess =
        std::clamp<int64_t>(response_lengths[i] - free_length, 0, overlong.buffer_length);
    shaped[i] -= overlong.penalty * static_cast<double>(excess) /
                 static_cast<double>(overlong.buffer_length);
  }
  return shaped;
}

std::vector<double> scale_truncated(double coefficient, const std::vector<bool>& truncated,
                                    std::span<const double> rewards) {
  CHECK(truncated.size() == rewards.size(), "{} flags for {} rewards", truncated.size(),
        rewards.size());
  CHECK(coefficient >= 0 && coefficient <= 1, "coefficient {}", coefficient);
  std::vector<double> shaped(rewards.begin(), rewards.end());
  for (size_t i = 0; i < shaped.size(); ++i)
    if (truncated[i]) shaped[i] *= coefficient;
  return shaped;
}

}  // namespace grpo::rl
