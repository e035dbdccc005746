#include "model/ops/softmax_row_cpu.h"

#include <cmath>

#include "model/core/errors.h"

namespace grpo::ops {

float softmax_row_max(const LogitsRow& row) {
  std::array<float, kSumLanes> maxima;
  maxima.fill(-std::numeric_limits<float>::infinity());
  const int64_t whole = row.size / kSumLanes * kSumLanes;
  for (int64_t i = 0; i < whole; i += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) {
      const float z = row.scaled(i + lane);
      float& max = maxima[static_cast<size_t>(lane)];
      max = z > max ? z : max;
    }
  }
  for (int64_t i = whole; i < row.size; ++i) maxima[0] = std::max(maxima[0], row.scaled(i));
  return *std::max_element(maxima.begin(), maxima.end());
}

float softmax_block_sum(const LogitsRow& row, float max, const KeptSet& kept, int64_t begin,
                        int64_t count) {
  std::array<float, kSoftmaxBlock> weights;
  softmax_block_weights(weights.data(), row, max, kept, begin, count);
  // A short block is filled up with zeros, which change no sum.
  const int64_t filled = (count + kSumLanes - 1) / kSumLanes * kSumLanes;
  std::fill(weights.begin() + count, weights.begin() + filled, 0.0f);
  std::array<float, kSumLanes> sums{};
  for (int64_t i = 0; i < filled; i += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) {
      sums[static_cast<size_t>(lane)] += weights[static_cast<size_t>(i + lane)];
    }
  }
  return tree_sum(sums);
}

double softmax_row_sum(const LogitsRow& row, float max, const KeptSet& kept) {
  double sum = 0.0;
  for (int64_t begin = 0; begin < row.size; begin += kSoftmaxBlock) {
    const int64_t count = std::min(kSoftmaxBlock, row.size - begin);
    sum += static_cast<double>(softmax_block_sum(row, max, kept, begin, count));
  }
  return sum;
}

SoftmaxStatistics softmax_row_statistics(const char* op, int64_t row_index, const LogitsRow& row) {
  const float max = softmax_row_max(row);
  // A NaN does not show in the maximum, but makes the sum NaN.
  const double sum = std::isfinite(max) ? softmax_row_sum(row, max, {}) : max;
  if (!std::isfinite(max) || !std::isfinite(sum)) {
    throw NonFiniteError(
        fmt::format("{}: logits of row {} are not finite (largest {}, sum of exponentials {})", op,
                    row_index, max, sum));
  }
  return {max, sum};
}

float softmax_logprob(const LogitsRow& row, int64_t token, const SoftmaxStatistics& statistics) {
  const double shifted =
      static_cast<double>(row.scaled(token)) - static_cast<double>(statistics.max);
  return static_cast<float>(shifted - std::log(statistics.sum));
}

}  // namespace grpo::ops
