// Fixture of the operator tests: tensors on the CPU with poisoned scratch, and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/core/counter_rng.h"
#include "model/core/tensor.h"
#include "model/ops/op_context.h"
#include "tests/ops/tolerances.h"

namespace grpo::ops {

using Values = std::vector<double>;

// Fresh tensors hold NaN, so that an element an operator forgot to write shows.
class OpTestTensors {
 public:
  OpTestTensors() { allocator_.set_poison_scratch(true); }

  Tensor make(DType dtype, const Shape& shape) {
    const Tensor& tensor = tensors_.emplace_back(allocator_, "test", dtype, shape).view();
    poison_memory(tensor.raw(), tensor.size_bytes(), tensor.device());
    return tensor;
  }

  // Standard normal values times scale, another draw each call.
  Tensor random(DType dtype, const Shape& shape, double scale = 1.0) {
    Values values(static_cast<size_t>(shape.num_elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = scale * normal_at(7, num_draws_, 0, i);
    ++num_draws_;
    return from(dtype, shape, values);
  }

  Tensor from(DType dtype, const Shape& shape, const Values& values) {
    const Tensor tensor = make(dtype, shape);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      if (dtype == DType::kBfloat16) {
        tensor.data<Bfloat16>()[i] = Bfloat16(value);
      } else {
        tensor.data<float>()[i] = value;
      }
    }
    return tensor;
  }

  Tensor ints(const Shape& shape, const std::vector<int32_t>& values) {
    const Tensor tensor = make(DType::kInt32, shape);
    std::copy(values.begin(), values.end(), tensor.data<int32_t>());
    return tensor;
  }

  Tensor copy(const Tensor& source) {
    const Tensor tensor = make(source.dtype(), source.shape());
    copy_tensor(tensor, source);
    return tensor;
  }

  OpContext& ctx() { return ctx_; }

 private:
  Allocator allocator_{Device::cpu()};
  Workspace workspace_{allocator_};
  OpContext ctx_{Device::cpu(), Stream::none(), workspace_};
  std::deque<OwnedTensor> tensors_;
  uint64_t num_draws_ = 0;
};

class OpTest : public ::testing::Test, public OpTestTensors {};

inline Values values_of(const Tensor& tensor) {
  Values values(static_cast<size_t>(tensor.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = tensor.dtype() == DType::kBfloat16 ? static_cast<float>(tensor.data<Bfloat16>()[i])
                                                   : tensor.data<float>()[i];
  }
  return values;
}

inline void expect_close(const Values& actual, const Values& expected, double tolerance,
                         const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0.0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < actual.size(); ++i) {
    // Written so that a NaN fails.
    ASSERT_TRUE(std::abs(actual[i] - expected[i]) <= tolerance * largest)
        << what << "[" << i << "] is " << actual[i] << ", wanted " << expected[i] << ", largest "
        << largest;
  }
}

inline void expect_close(const Tensor& actual, const Values& expected, Tolerance tolerance,
                         const char* what) {
  expect_close(values_of(actual), expected, tolerance.of(actual.dtype()), what);
}

inline void expect_same_bits(const Tensor& actual, const Tensor& expected, const char* what) {
  ASSERT_EQ(actual.dtype(), expected.dtype()) << what;
  ASSERT_EQ(actual.num_elements(), expected.num_elements()) << what;
  const size_t size = dtype_size_bytes(actual.dtype());
  for (int64_t i = 0; i < actual.num_elements(); ++i) {
    const size_t at = static_cast<size_t>(i) * size;
    ASSERT_EQ(0, std::memcmp(static_cast<const std::byte*>(actual.raw()) + at,
                             static_cast<const std::byte*>(expected.raw()) + at, size))
        << what << ": element " << i << " of " << actual.shape().to_string() << " differs";
  }
}

using Loss = std::function<double(const Values&)>;

// Compares a gradient with central differences of a float64 loss at x, at up to kMaxProbes inputs.
// Their error is about 1e-9 of the loss's scale. Inputs are of order 1, so a gradient that cancels
// to 0 is held to the tolerance on a scale of kZeroScale.
inline void expect_gradient(const Tensor& actual, const Loss& loss, Values x, Tolerance tolerance,
                            const char* what) {
  constexpr double kStep = 1e-5;
  constexpr double kZeroScale = 0.1;
  constexpr size_t kMaxProbes = 50;
  const Values gradient = values_of(actual);
  ASSERT_EQ(gradient.size(), x.size()) << what;
  double largest = kZeroScale;
  for (const double value : gradient) largest = std::max(largest, std::abs(value));
  for (size_t probe = 0; probe < std::min(kMaxProbes, x.size()); ++probe) {
    const size_t i = x.size() <= kMaxProbes ? probe : mix_bits(probe + 1) % x.size();
    const double center = x[i];
    x[i] = center + kStep;
    const double above = loss(x);
    x[i] = center - kStep;
    const double wanted = (above - loss(x)) / (2 * kStep);
    x[i] = center;
    ASSERT_TRUE(std::abs(gradient[i] - wanted) <= tolerance.of(actual.dtype()) * largest)
        << what << "[" << i << "] is " << gradient[i] << ", wanted " << wanted << ", largest "
        << largest;
  }
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline Values plus(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

constexpr DType kActivationDTypes[] = {DType::kFloat32, DType::kBfloat16};

inline std::string dtype_case_name(const ::testing::TestParamInfo<DType>& test) {
  return std::string(dtype_name(test.param));
}

// "bfloat16_3_64" from a dtype and sizes.
inline std::string case_name(DType dtype, std::initializer_list<int64_t> sizes) {
  std::string name(dtype_name(dtype));
  for (const int64_t size : sizes) name += "_" + std::to_string(size);
  return name;
}

// Tests over dtype x (rows, size of a row).
using RowCase = std::tuple<DType, std::pair<int64_t, int64_t>>;

inline std::string row_case_name(const ::testing::TestParamInfo<RowCase>& test) {
  const auto& [dtype, sizes] = test.param;
  return case_name(dtype, {sizes.first, sizes.second});
}

}  // namespace grpo::ops
