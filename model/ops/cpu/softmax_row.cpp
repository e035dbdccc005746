#include "model/ops/cpu/softmax_row.h"

#include <cmath>

#include "model/ops/cpu/lane_sum.h"
#include "model/ops/non_finite_row.h"

namespace grpo::ops::cpu {

namespace {

// Largest z of tokens [begin, begin + count), whatever NaN are among them; +0 rather than -0.
float largest_scaled(const LogitsRow& row, int64_t begin, int64_t count) {
  std::array<float, kSumLanes> maxima;
  maxima.fill(-std::numeric_limits<float>::infinity());
  const int64_t whole = count / kSumLanes * kSumLanes;
  for (int64_t i = 0; i < whole; i += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) {
      const float z = row.scaled(begin + i + lane);
      float& max = maxima[static_cast<size_t>(lane)];
      max = z > max ? z : max;
    }
  }
  for (int64_t i = whole; i < count; ++i) maxima[0] = std::max(maxima[0], row.scaled(begin + i));
  return *std::max_element(maxima.begin(), maxima.end()) + 0.0f;
}

}  // namespace

void softmax_block(SoftmaxBlock& block, const LogitsRow& row, float max, const KeptSet& kept,
                   int64_t begin) {
  const int64_t count = std::min(kSoftmaxBlock, row.size - begin);
  const float largest = largest_scaled(row, begin, count);
  const bool has_any = largest != -std::numeric_limits<float>::infinity();
  softmax_weights(block.weights.data(), row, has_any ? largest : 0.0f, kept, begin, count);
  std::fill(block.weights.begin() + count, block.weights.end(), 0.0f);
  std::array<float, kSoftmaxLanes> sums{};
  for (size_t i = 0; i < kSoftmaxBlock; i += kSoftmaxLanes) {
    for (size_t lane = 0; lane < kSoftmaxLanes; ++lane) sums[lane] += block.weights[i + lane];
  }
  block.sum = tree_sum(sums);
  block.scale = static_cast<double>(exp_float(largest - max));
}

double softmax_row_sum(const LogitsRow& row, float max, const KeptSet& kept) {
  double sum = 0.0;
  SoftmaxBlock block;
  for (int64_t begin = 0; begin < row.size; begin += kSoftmaxBlock) {
    softmax_block(block, row, max, kept, begin);
    sum += block.mass();
  }
  return sum;
}

SoftmaxStatistics softmax_row_statistics(const char* op, int64_t row_index, const LogitsRow& row) {
  const float max = largest_scaled(row, 0, row.size);
  // A NaN does not show in the maximum, but makes the sum NaN.
  const double sum = std::isfinite(max) ? softmax_row_sum(row, max, {}) : max;
  if (!std::isfinite(max) || !std::isfinite(sum)) throw_non_finite_row(op, row_index, max, sum);
  return {max, sum};
}

float softmax_logprob(const LogitsRow& row, int64_t token, const SoftmaxStatistics& statistics) {
  const double shifted =
      static_cast<double>(row.scaled(token)) - static_cast<double>(statistics.max);
  return static_cast<float>(shifted - log_double(statistics.sum));
}

}  // namespace grpo::ops::cpu
