#include "rl/objective/moments.h"

#include <algorithm>
#include <cmath>

namespace grpo::rl {

double Moments::unbiased_std() const {
  return count > 1 ? std::sqrt(sum_squared_dev / (count - 1)) : 0.0;
}

double Moments::population_variance() const { return count > 0 ? sum_squared_dev / count : 0.0; }

Moments moments_of(std::span<const double> values) {
  Moments moments{.mean = 0, .sum_squared_dev = 0, .count = static_cast<double>(values.size())};
  if (values.empty()) return moments;
  // The mean of n equal values can round away from them and leave a spread that is not there.
  if (std::all_of(values.begin(), values.end(), [&](double x) { return x == values.front(); })) {
    moments.mean = values.front();
    return moments;
  }
  for (const double value : values) moments.mean += value;
  moments.mean /= moments.count;
  for (const double value : values) {
    const double deviation = value - moments.mean;
    moments.sum_squared_dev += deviation * deviation;
  }
  return moments;
}

}  // namespace grpo::rl
