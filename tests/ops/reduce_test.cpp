// N elements.
#include "model/ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

class ReduceTest : public OpTest {};

// Of all arrays together.
double sum_of(std::span<const Tensor> xs, OpContext& ctx) {
  std::vector<float> largest(xs.size());
  largest_magnitudes(largest, xs, ctx);
  const SquareGrid grid(largest.empty() ? 0 : *std::max_element(largest.begin(), largest.end()));
  return grid.value(square_sum(xs, grid, ctx));
}

TEST_F(ReduceTest, SquareSumIsExactForIntegers) {
  for (const int64_t count : {0, 1, 15, 16, 17, 1000}) {
    Values values;
    double wanted = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<double>(i % 97 - 40));
      wanted += values.back() * values.back();
    }
    const Tensor x = from(DType::kFloat32, {count}, values);
    EXPECT_EQ(sum_of({&x, 1}, ctx()), wanted) << count;
  }
}

TEST_F(ReduceTest, SquareSumReachesOverAllFloats) {
  const double largest = std::numeric_limits<float>::max();
  const double smallest = std::numeric_limits<float>::denorm_min();
  const auto sum = [&](const Values& values) {
    const Tensor x = from(DType::kFloat32, {static_cast<int64_t>(values.size())}, values);
    return sum_of({&x, 1}, ctx());
  };
  EXPECT_EQ(sum({-largest, largest, 1.0}), 2 * largest * largest);
  EXPECT_EQ(sum({smallest, -smallest, 0.0}), 2 * smallest * smallest);
  EXPECT_EQ(sum({3 * smallest, 0x1p-126}), 9 * smallest * smallest + 0x1p-252);
  EXPECT_EQ(sum({1e20, 1.0, 1e20}), 2.0 * double{1e20f} * double{1e20f});
  EXPECT_EQ(sum({4096.0, 0.25}), 16777216.0625);
  EXPECT_EQ(sum({0.0, -0.0}), 0.0);
}

// Each square is rounded for itself, so that order and grouping change nothing, where a sum in
// double would lose the small ones or not, by their place.
TEST_F(ReduceTest, SquareSumDependsOnNeitherOrderNorSplit) {
  Values values;
  for (int i = 0; i < 1000; ++i) {
    values.push_back(std::ldexp(1.0 + uniform_at(3, 1, 0, i), i % 61 - 40));
  }
  const Tensor whole = from(DType::kFloat32, {1000}, values);
  std::vector<float> largest(1);
  largest_magnitudes(largest, {&whole, 1}, ctx());
  const SquareGrid grid(largest[0]);
  const FixedPoint sum = square_sum({&whole, 1}, grid, ctx());
  Values reversed(values.rbegin(), values.rend());
  const Tensor backwards = from(DType::kFloat32, {1000}, reversed);
  EXPECT_TRUE(square_sum({&backwards, 1}, grid, ctx()) == sum);
  FixedPoint parts = 0;
  for (const auto& [begin, count] :
       {std::pair<int64_t, int64_t>{0, 7}, {7, 0}, {7, 992}, {999, 1}}) {
    const std::vector<Tensor> part{whole.rows(begin, count)};
    parts += square_sum(part, grid, ctx());
  }
  EXPECT_TRUE(parts == sum);
  long double wanted = 0;
  for (const double value : values) {
    wanted += static_cast<long double>(static_cast<float>(value)) * static_cast<float>(value);
  }
  EXPECT_NEAR(grid.value(sum) / static_cast<double>(wanted), 1.0, 1e-15);
}

TEST_F(ReduceTest, LargestMagnitudesAreThoseOfEachArrayAndShowNonFiniteValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<Tensor> arrays{
      from(DType::kFloat32, {3}, {1.0, -2.5, 2.0}), from(DType::kFloat32, {0}, {}),
      from(DType::kFloat32, {2}, {-0.0, 0.0}), from(DType::kFloat32, {2}, {3.0, double{-infinity}}),
      from(DType::kFloat32, {2}, {double{infinity}, -std::nan("")})};
  std::vector<float> largest(arrays.size(), -1.0f);
  largest_magnitudes(largest, arrays, ctx());
  EXPECT_EQ(largest[0], 2.5f);
  EXPECT_EQ(largest[1], 0.0f);
  EXPECT_EQ(largest[2], 0.0f);
  EXPECT_EQ(largest[3], infinity);
  EXPECT_TRUE(std::isnan(largest[4]));
  EXPECT_THROW(largest_magnitudes(std::span(largest).first(3), arrays, ctx()), InternalError);
  largest_magnitudes({}, {}, ctx());
}

TEST_F(ReduceTest, ConvertRoundsToNearestEvenAndCopiesBits) {
  const Tensor source = from(DType::kFloat32, {4}, {1.0, 1.00390625, 1.01171875, -3.1415926});
  const Tensor bf16 = make(DType::kBfloat16, {4});
  convert(bf16, source, ctx());
  EXPECT_EQ(values_of(bf16), (Values{1.0, 1.0, 1.015625, -3.140625}));
  const Tensor back = make(DType::kFloat32, {4});
  convert(back, bf16, ctx());
  EXPECT_EQ(values_of(back), values_of(bf16));

  for (const DType dtype : kActivationDTypes) {
    const Tensor nan = make(dtype, {3});  // all bits set
    const Tensor copied = random(dtype, {3});
    convert(copied, nan, ctx());
    expect_same_bits(copied, nan, "equal dtypes");
  }
}

TEST_F(ReduceTest, AddIntoAdds) {
  const Tensor x = random(DType::kFloat32, {37});
  const Tensor y = random(DType::kFloat32, {37});
  Values wanted = values_of(y);
  for (size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = static_cast<float>(wanted[i]) + static_cast<float>(values_of(x)[i]);
  }
  add_into(y, x, ctx());
  EXPECT_EQ(values_of(y), wanted);
}

TEST_F(ReduceTest, ZeroElements) {
  const Tensor none = make(DType::kFloat32, {0});
  convert(make(DType::kBfloat16, {0}), none, ctx());
  add_into(none, none, ctx());
}

TEST_F(ReduceTest, OperandsAreChecked) {
  const Tensor x = random(DType::kFloat32, {3});
  const Tensor half = random(DType::kBfloat16, {3});
  std::vector<float> largest(1);
  EXPECT_THROW(largest_magnitudes(largest, {&half, 1}, ctx()), InternalError);
  EXPECT_THROW(square_sum({&half, 1}, SquareGrid(1.0f), ctx()), InternalError);
  EXPECT_THROW(convert(x, random(DType::kFloat32, {4}), ctx()), InternalError);
  EXPECT_THROW(convert(x, ints({3}, {1, 2, 3}), ctx()), InternalError);
  EXPECT_THROW(add_into(x, random(DType::kFloat32, {2}), ctx()), InternalError);
  EXPECT_THROW(add_into(x, random(DType::kBfloat16, {3}), ctx()), InternalError);
}

}  // namespace
}  // namespace grpo::ops
