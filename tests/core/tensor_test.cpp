#include "model/core/tensor.h"

#include <gtest/gtest.h>

namespace grpo {
namespace {

TEST(ShapeTest, SizesAndText) {
  const Shape shape{3, 64};
  EXPECT_EQ(shape.rank(), 2);
  EXPECT_EQ(shape[1], 64);
  EXPECT_EQ(shape.num_elements(), 192);
  EXPECT_EQ(shape.to_string(), "[3, 64]");
  EXPECT_EQ(Shape({0, 5}).num_elements(), 0);
  EXPECT_EQ(Shape{}.to_string(), "[]");
  EXPECT_EQ(shape, (Shape{3, 64}));
  EXPECT_NE(shape, (Shape{64, 3}));
  EXPECT_NE(shape, (Shape{3, 64, 1}));
  EXPECT_THROW((Shape{1, 1, 1, 1, 1}), InternalError);
  EXPECT_THROW((Shape{-1}), InternalError);
}

class TensorTest : public ::testing::Test {
 protected:
  Allocator allocator_{Device::cpu()};
};

TEST_F(TensorTest, OwnedTensorStartsZeroedAndAligned) {
  const OwnedTensor owned(allocator_, "test", DType::kFloat32, {5, 7});
  const Tensor& view = owned.view();
  EXPECT_EQ(view.size_bytes(), 140u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.raw()) % 64, 0u);
  for (int64_t i = 0; i < 35; ++i) EXPECT_EQ(view.data<float>()[i], 0.0f);
  EXPECT_FALSE(owned.is_empty());
  EXPECT_TRUE(OwnedTensor().is_empty());
  EXPECT_TRUE(Tensor().is_absent());
  EXPECT_EQ(Tensor().num_elements(), 0);
}

TEST_F(TensorTest, DataChecksTheType) {
  const OwnedTensor owned(allocator_, "test", DType::kBfloat16, {2});
  EXPECT_NO_THROW(owned.view().data<Bfloat16>());
  EXPECT_THROW(owned.view().data<float>(), InternalError);
}

TEST_F(TensorTest, RowsAreViewsOfTheSameMemory) {
  const OwnedTensor owned(allocator_, "test", DType::kBfloat16, {4, 3, 2});
  const Tensor rows = owned.view().rows(1, 2);
  EXPECT_EQ(rows.shape(), (Shape{2, 3, 2}));
  EXPECT_EQ(rows.raw(), owned.view().data<Bfloat16>() + 6);
  EXPECT_EQ(owned.view().rows(4, 0).num_elements(), 0);
  EXPECT_THROW(owned.view().rows(3, 2), InternalError);
  EXPECT_THROW(owned.view().rows(-1, 1), InternalError);
  EXPECT_THROW(Tensor().rows(0, 0), InternalError);
  const OwnedTensor none(allocator_, "test", DType::kFloat32, {0, 3});
  EXPECT_EQ(none.view().rows(0, 0).shape(), (Shape{0, 3}));
}

TEST_F(TensorTest, ReshapedKeepsTheElements) {
  const OwnedTensor owned(allocator_, "test", DType::kFloat32, {4, 6});
  const Tensor reshaped = owned.view().reshaped({2, 12});
  EXPECT_EQ(reshaped.raw(), owned.view().raw());
  EXPECT_EQ(reshaped.shape(), (Shape{2, 12}));
  EXPECT_THROW(owned.view().reshaped({5, 5}), InternalError);
}

TEST_F(TensorTest, CopyAndZero) {
  const OwnedTensor a(allocator_, "a", DType::kInt32, {2, 3});
  const OwnedTensor b(allocator_, "b", DType::kInt32, {6});
  for (int32_t i = 0; i < 6; ++i) a.view().data<int32_t>()[i] = i * i;
  copy_tensor(b, a);
  EXPECT_EQ(b.view().data<int32_t>()[5], 25);
  fill_zero(b);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(b.view().data<int32_t>()[i], 0);
  EXPECT_EQ(a.view().data<int32_t>()[5], 25);
  const OwnedTensor floats(allocator_, "c", DType::kFloat32, {6});
  const OwnedTensor few(allocator_, "d", DType::kInt32, {5});
  EXPECT_THROW(copy_tensor(floats, a), InternalError);
  EXPECT_THROW(copy_tensor(few, a), InternalError);
  EXPECT_NO_THROW(fill_zero(Tensor(nullptr, DType::kFloat32, {0}, Device::cpu())));
}

TEST(CheckTest, MessageNamesPlaceConditionAndValues) {
  try {
    const int rows = 3;
    CHECK(rows == 4, "rows is {}", rows);
    FAIL() << "a false condition passed";
  } catch (const InternalError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("tensor_test.cpp:"), std::string::npos) << message;
    EXPECT_NE(message.find("rows == 4"), std::string::npos) << message;
    EXPECT_NE(message.find("rows is 3"), std::string::npos) << message;
    EXPECT_EQ(error.exit_code(), ExitCode::kOther);
  }
}

}  // namespace
}  // namespace grpo
