// N elements.
#include "model/ops/reduce.h"

#include <limits>

#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

class ReduceTest : public OpTest {};

TEST_F(ReduceTest, SumOfSquaresIsExactForIntegers) {
  for (const int64_t count : {0, 1, 15, 16, 17, 1000}) {
    Values values;
    double wanted = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<double>(i % 97 - 40));
      wanted += values.back() * values.back();
    }
    EXPECT_EQ(sum_of_squares(from(DType::kFloat32, {count}, values), ctx()), wanted) << count;
  }
}

TEST_F(ReduceTest, SumOfSquaresKeepsWhatFloatWouldLose) {
  EXPECT_EQ(sum_of_squares(from(DType::kFloat32, {3}, {1e20, 1.0, 1e20}), ctx()),
            2.0 * double{1e20f} * double{1e20f} + 1.0);
  EXPECT_EQ(sum_of_squares(from(DType::kFloat32, {2}, {4096.0, 0.25}), ctx()), 16777216.0625);
}

TEST_F(ReduceTest, SumOfSquaresShowsNonFiniteValues) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::nan("")}) {
    Values values(35, 1.0);
    values[34] = bad;
    EXPECT_FALSE(std::isfinite(sum_of_squares(from(DType::kFloat32, {35}, values), ctx())));
  }
}

TEST_F(ReduceTest, SumsOfSquaresAreThoseOfEachArray) {
  std::vector<Tensor> arrays;
  std::vector<double> wanted;
  for (const int64_t count : {3, 0, 100, 1}) {
    arrays.push_back(random(DType::kFloat32, {count}));
    wanted.push_back(sum_of_squares(arrays.back(), ctx()));
  }
  std::vector<double> sums(arrays.size(), -1.0);
  sums_of_squares(sums, arrays, ctx());
  EXPECT_EQ(sums, wanted);
  EXPECT_THROW(sums_of_squares(std::span(sums).first(3), arrays, ctx()), InternalError);
  sums_of_squares({}, {}, ctx());
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
  EXPECT_EQ(sum_of_squares(none, ctx()), 0.0);
}

TEST_F(ReduceTest, OperandsAreChecked) {
  const Tensor x = random(DType::kFloat32, {3});
  EXPECT_THROW(sum_of_squares(random(DType::kBfloat16, {3}), ctx()), InternalError);
  EXPECT_THROW(convert(x, random(DType::kFloat32, {4}), ctx()), InternalError);
  EXPECT_THROW(convert(x, ints({3}, {1, 2, 3}), ctx()), InternalError);
  EXPECT_THROW(add_into(x, random(DType::kFloat32, {2}), ctx()), InternalError);
  EXPECT_THROW(add_into(x, random(DType::kBfloat16, {3}), ctx()), InternalError);
}

}  // namespace
}  // namespace grpo::ops
