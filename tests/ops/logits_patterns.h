// Rows of logits and filters for the tests that hold CUDA operators on logits against the CPU's.
#pragma once

#include <limits>

#include "tests/ops/cuda_op_test.h"
#include "tests/ops/kept_sets.h"

namespace grpo::ops {

constexpr SamplingFilter kFilters[] = {
    {1.0f, 0, 1.0}, {0.7f, 0, 1.0},  {0.7f, 20, 1.0},  {1.3f, 0, 0.8},    {0.7f, 50, 0.9},
    {1.0f, 1, 1.0}, {1.0f, 0, 1e-9}, {2.0f, 0, 0.999}, {1.0f, 3000, 0.5}, {1.0f, 700, 0.99}};
// Stored by id up to this size: never, sometimes, mostly.
constexpr int32_t kMaxKeptIds[] = {0, 4, 256};

// What rows of logits can look like.
enum class Pattern {
  kNormal,
  kPeaked,    // a few tokens have nearly all the probability
  kFlat,      // keys that differ in their last digits alone
  kTies,      // few different values, of both signs, with both zeros
  kEqual,     // one value
  kExcluded,  // most logits -infinity
};
constexpr Pattern kPatterns[] = {Pattern::kNormal, Pattern::kPeaked, Pattern::kFlat,
                                 Pattern::kTies,   Pattern::kEqual,  Pattern::kExcluded};

inline double pattern_value(Pattern pattern, double normal, int64_t index) {
  switch (pattern) {
    case Pattern::kNormal:
      return 3.0 * normal;
    case Pattern::kPeaked:
      return 30.0 * normal;
    case Pattern::kFlat:
      return 5.0 + 1e-6 * normal;
    case Pattern::kTies:
      return std::round(2.0 * normal) * (index % 2 == 0 ? 0.5 : -0.5);
    case Pattern::kEqual:
      return -1.5;
    case Pattern::kExcluded:
      return index % 7 == 3 || index == 0 ? normal : -std::numeric_limits<double>::infinity();
  }
  return 0.0;
}

class LogitsTestTensors : public CudaOpTestTensors {
 public:
  Tensor logits_of(Pattern pattern, int64_t num_rows, int64_t size) {
    Values values = values_of(random(DType::kFloat32, {num_rows, size}));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = pattern_value(pattern, values[i], static_cast<int64_t>(i) % size);
    }
    return from(DType::kFloat32, {num_rows, size}, values);
  }

  KeptTokens filtered(const Tensor& logits, const SamplingFilter& filter, OpContext& on) {
    KeptTokens kept;
    filter_tokens(kept, logits, filter, on);
    return kept;
  }

  // First, last and others.
  Tensor targets_of(int64_t num_rows, int64_t size) {
    std::vector<int32_t> targets;
    for (int64_t t = 0; t < num_rows; ++t)
      targets.push_back(static_cast<int32_t>(t == 1 ? size - 1 : 7919 * t % size));
    return ints({num_rows}, targets);
  }
};

}  // namespace grpo::ops
