// Mean and variance in two passes, exact where all values are equal.
#pragma once

#include <span>

namespace grpo::rl {

struct Moments {
  double mean;             // 0 of nothing
  double sum_squared_dev;  // sum of (x - mean)^2; exactly 0 where all values are equal
  double count;

  double unbiased_std() const;         // 0 for fewer than two values
  double population_variance() const;  // 0 of nothing
};

// Sums run in the given order.
Moments moments_of(std::span<const double> values);

}  // namespace grpo::rl
