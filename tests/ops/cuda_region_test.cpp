#include "model/ops/region.h"
#include "tests/ops/cuda_op_test.h"

namespace grpo::ops {
namespace {

struct RegionCase {
  Shape matrix;
  int64_t row, col, num_rows, num_cols;
};

// Nothing, one element, a vector, broken rows, whole rows, rows of more than one block.
const std::vector<RegionCase> kCases{{{3, 4}, 1, 2, 0, 2},       {{3, 4}, 2, 3, 1, 1},
                                     {{1031, 1}, 0, 0, 1031, 1}, {{7, 131}, 2, 5, 4, 113},
                                     {{64, 896}, 0, 0, 64, 896}, {{3, 5003}, 1, 1, 2, 4999}};

class CudaRegionTest : public CudaTest<::testing::TestWithParam<size_t>> {
 protected:
  Region region(const Tensor& matrix) const {
    const RegionCase& c = kCases[GetParam()];
    return {matrix, c.row, c.col, c.num_rows, c.num_cols};
  }
  Tensor zero() {
    const Tensor tensor = make(DType::kInt64, {1});
    fill_zero(tensor);
    return tensor;
  }
};

INSTANTIATE_TEST_SUITE_P(Cases, CudaRegionTest, ::testing::Range<size_t>(0, kCases.size()),
                         ::testing::PrintToStringParamName());

TEST_P(CudaRegionTest, CopyRegion) {
  const Shape shape = kCases[GetParam()].matrix;
  for (const DType from_type : kActivationDTypes) {
    for (const DType to_type : kActivationDTypes) {
      const Tensor source = random(from_type, shape);
      const Tensor before = random(to_type, shape);
      // Rows that hold what will be written, so that not everything counts as changed.
      copy_region({before, 0, 0, shape[0] / 2, shape[1]}, {source, 0, 0, shape[0] / 2, shape[1]},
                  Tensor(), ctx());
      const Tensor wanted = copy(before);
      const Tensor changed = zero();
      copy_region(region(wanted), region(source), changed, ctx());
      expect_bits({wanted, changed}, [&](int64_t shift) {
        const Tensor destination = to_cuda(before, shift);
        const Tensor count = to_cuda(zero());
        copy_region(region(destination), region(to_cuda(source, shift)), count, cuda());
        return Results{destination, count};
      });
    }
  }
}

TEST_P(CudaRegionTest, AddFingerprint) {
  for (const DType type : kActivationDTypes) {
    for (const DType as_type : kActivationDTypes) {
      const Tensor matrix = random(type, kCases[GetParam()].matrix);
      const LogicalPlace place{0x123456789ABCDEFull, 1000, 77};
      const Tensor wanted = zero();
      add_fingerprint(wanted, region(matrix), place, as_type, ctx());
      expect_bits({wanted}, [&](int64_t shift) {
        const Tensor sum = to_cuda(zero());
        add_fingerprint(sum, region(to_cuda(matrix, shift)), place, as_type, cuda());
        return Results{sum};
      });
    }
  }
}

}  // namespace
}  // namespace grpo::ops
