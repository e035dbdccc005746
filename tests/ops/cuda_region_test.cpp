#include "model/ops/region.h"
#include "tests/ops/cuda_op_test.h"
#include "tests/ops/one_region.h"

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
  MatrixRegion region(const Tensor& matrix) const {
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

class CudaManyRegionsTest : public CudaTest<::testing::Test> {};

// Regions of all cases and types in one call, as a refit moves them.
TEST_F(CudaManyRegionsTest, OneCallDoesWhatManyDo) {
  std::vector<Tensor> sources, befores;
  for (const RegionCase& c : kCases) {
    for (const DType from : kActivationDTypes) {
      for (const DType to : kActivationDTypes) {
        sources.push_back(random(from, c.matrix));
        befores.push_back(random(to, c.matrix));
      }
    }
  }
  const auto region_of = [&](const Tensor& matrix, size_t i) {
    const RegionCase& c = kCases[i / 4];
    return MatrixRegion{matrix, c.row, c.col, c.num_rows, c.num_cols};
  };
  const auto run = [&](const std::vector<Tensor>& to, const std::vector<Tensor>& from,
                       const Tensor& changed, const Tensor& sum, OpContext& where) {
    std::vector<RegionCopy> copies;
    std::vector<PlacedRegion> placed;
    for (size_t i = 0; i < to.size(); ++i) {
      copies.push_back({region_of(to[i], i), region_of(from[i], i)});
      placed.push_back({copies.back().destination,
                        {.tensor_key = 77 + i, .row = static_cast<int64_t>(i), .col = 3}});
    }
    copy_regions(copies, changed, where);
    add_fingerprints(sum, placed, DType::kBfloat16, where);
  };
  const auto zero = [&] {
    const Tensor tensor = make(DType::kInt64, {1});
    fill_zero(tensor);
    return tensor;
  };
  std::vector<Tensor> wanted;
  for (const Tensor& before : befores) wanted.push_back(copy(before));
  const Tensor changed = zero();
  const Tensor sum = zero();
  run(wanted, sources, changed, sum, ctx());
  EXPECT_GT(changed.data<int64_t>()[0], 0);
  wanted.push_back(changed);
  wanted.push_back(sum);
  expect_bits(Results(wanted.begin(), wanted.end()), [&](int64_t shift) {
    std::vector<Tensor> to, from;
    for (const Tensor& before : befores) to.push_back(to_cuda(before, shift));
    for (const Tensor& source : sources) from.push_back(to_cuda(source, shift));
    const Tensor count = to_cuda(zero());
    const Tensor total = to_cuda(zero());
    run(to, from, count, total, cuda());
    to.push_back(count);
    to.push_back(total);
    return Results(to.begin(), to.end());
  });
}

}  // namespace
}  // namespace grpo::ops
