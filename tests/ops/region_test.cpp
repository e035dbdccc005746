// Regions of 2 to 5 rows and columns inside larger matrices.
#include "model/ops/region.h"

#include <bit>

#include "tests/ops/one_region.h"
#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

class RegionTest : public OpTest {
 protected:
  Tensor counter() {
    const Tensor tensor = make(DType::kInt64, {1});
    *tensor.data<int64_t>() = 0;
    return tensor;
  }
};

TEST_F(RegionTest, OnlyTheRectangleIsWrittenAndChangesAreCounted) {
  const Tensor source = random(DType::kFloat32, {6, 7});
  const Tensor destination = random(DType::kFloat32, {5, 9});
  const Tensor before = copy(destination);
  // One element that is there already, and one that differs in its sign alone.
  float* values = destination.data<float>();
  values[1 * 9 + 4] = source.data<float>()[2 * 7 + 1];
  source.data<float>()[3 * 7 + 2] = 0.0f;
  values[2 * 9 + 5] = -0.0f;
  const Tensor changed = counter();
  const MatrixRegion to{destination, 1, 4, 3, 5};
  copy_region(to, {source, 2, 1, 3, 5}, changed, ctx());
  EXPECT_EQ(*changed.data<int64_t>(), 14);
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t c = 0; c < 9; ++c) {
      const bool inside = r >= 1 && r < 4 && c >= 4;
      const float wanted =
          inside ? source.data<float>()[(r + 1) * 7 + c - 3] : before.data<float>()[r * 9 + c];
      EXPECT_EQ(std::bit_cast<uint32_t>(values[r * 9 + c]), std::bit_cast<uint32_t>(wanted));
    }
  }
  copy_region(to, {source, 2, 1, 3, 5}, changed, ctx());
  EXPECT_EQ(*changed.data<int64_t>(), 14);  // nothing more
  copy_region(to, {source, 2, 1, 3, 5}, Tensor(), ctx());
}

TEST_F(RegionTest, ConvertsBetweenTheTypes) {
  const Tensor source = from(DType::kFloat32, {1, 3}, {1.0, 1.00390625, 1.01171875});
  const Tensor rounded = make(DType::kBfloat16, {1, 3});
  copy_region({rounded, 0, 0, 1, 3}, {source, 0, 0, 1, 3}, Tensor(), ctx());
  EXPECT_EQ(values_of(rounded), (Values{1.0, 1.0, 1.015625}));
  const Tensor back = make(DType::kFloat32, {1, 3});
  copy_region({back, 0, 0, 1, 3}, {rounded, 0, 0, 1, 3}, Tensor(), ctx());
  EXPECT_EQ(values_of(back), (Values{1.0, 1.0, 1.015625}));
}

TEST_F(RegionTest, AFingerprintIsTheSumOverAnyCut) {
  const Tensor matrix = random(DType::kFloat32, {6, 5});
  for (const DType dtype : kActivationDTypes) {
    const Tensor whole = counter();
    add_fingerprint(whole, {matrix, 1, 0, 4, 5}, {99, 10, 20}, dtype, ctx());
    const Tensor cut = counter();
    add_fingerprint(cut, {matrix, 3, 0, 2, 5}, {99, 12, 20}, dtype, ctx());
    add_fingerprint(cut, {matrix, 1, 3, 2, 2}, {99, 10, 23}, dtype, ctx());
    add_fingerprint(cut, {matrix, 1, 0, 2, 3}, {99, 10, 20}, dtype, ctx());
    EXPECT_EQ(*cut.data<int64_t>(), *whole.data<int64_t>());
  }
}

TEST_F(RegionTest, AFingerprintSeesPlaceTensorTypeAndBits) {
  const Tensor matrix = random(DType::kFloat32, {3, 4});
  std::vector<int64_t> all;
  const auto add = [&](const LogicalPlace& place, DType dtype) {
    const Tensor sum = counter();
    add_fingerprint(sum, {matrix, 0, 0, 3, 4}, place, dtype, ctx());
    all.push_back(*sum.data<int64_t>());
  };
  add({1, 0, 0}, DType::kFloat32);
  add({1000, 0, 0}, DType::kFloat32);
  add({1, 1, 0}, DType::kFloat32);
  add({1, 0, 1}, DType::kFloat32);
  add({1, 0, 0}, DType::kBfloat16);
  std::swap(matrix.data<float>()[0], matrix.data<float>()[4]);
  add({1, 0, 0}, DType::kFloat32);
  matrix.data<float>()[5] = std::nextafter(matrix.data<float>()[5], 100.0f);
  add({1, 0, 0}, DType::kFloat32);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
}

TEST_F(RegionTest, RectanglesOutsideAreRefused) {
  const Tensor matrix = random(DType::kFloat32, {3, 4});
  const auto refused = [&](const MatrixRegion& region) {
    EXPECT_THROW(add_fingerprint(counter(), region, {1, 0, 0}, DType::kFloat32, ctx()),
                 InternalError);
  };
  refused({matrix, 0, 0, 4, 4});
  refused({matrix, 1, 0, 3, 4});
  refused({matrix, -1, 0, 1, 4});
  refused({matrix, 0, 2, 1, 3});
  EXPECT_THROW(copy_region({matrix, 0, 0, 2, 2}, {matrix, 1, 0, 2, 1}, Tensor(), ctx()),
               InternalError);
}

}  // namespace
}  // namespace grpo::ops
