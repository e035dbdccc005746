// N elements.
#include <algorithm>
#include <cmath>
#include <limits>

#include "model/ops/optimizer_step.h"
#include "model/ops/reduce.h"
#include "tests/ops/cuda_op_test.h"

namespace grpo::ops {
namespace {

class CudaFlatOpsTest : public CudaTest<::testing::TestWithParam<int64_t>> {
 protected:
  Shape shape() const { return {GetParam()}; }
};

// None, one, broken groups, a whole chunk of square_sum, one more, several.
INSTANTIATE_TEST_SUITE_P(Sizes, CudaFlatOpsTest,
                         ::testing::Values(0, 1, 7, 64, 16384, 16385, 100003),
                         ::testing::PrintToStringParamName());

TEST_P(CudaFlatOpsTest, Convert) {
  for (const DType from_type : kActivationDTypes) {
    for (const DType to_type : kActivationDTypes) {
      const Tensor source = random(from_type, shape());
      const Tensor wanted = make(to_type, shape());
      convert(wanted, source, ctx());
      expect_bits({wanted}, [&](int64_t shift) {
        const Tensor destination = cuda_make(to_type, shape(), shift);
        convert(destination, to_cuda(source, shift), cuda());
        return Results{destination};
      });
    }
  }
}

TEST_P(CudaFlatOpsTest, AddInto) {
  const Tensor x = random(DType::kFloat32, shape());
  const Tensor before = random(DType::kFloat32, shape());
  const Tensor wanted = copy(before);
  add_into(wanted, x, ctx());
  expect_bits({wanted}, [&](int64_t shift) {
    const Tensor y = to_cuda(before, shift);
    add_into(y, to_cuda(x, shift), cuda());
    return Results{y};
  });
}

// The CPU's bits, of neighbouring and unaligned arrays, empty ones among them.
TEST_P(CudaFlatOpsTest, SquareSumAndLargestMagnitudes) {
  std::vector<Tensor> arrays, on_device, shifted;
  for (const int64_t count : {int64_t{0}, GetParam(), int64_t{5}, int64_t{0}, int64_t{40000}}) {
    const Tensor x = random(DType::kFloat32, {count});
    for (int64_t i = 0; i < count; ++i) {
      x.data<float>()[i] = std::ldexp(x.data<float>()[i], static_cast<int>(i % 90) - 60);
    }
    arrays.push_back(x);
    on_device.push_back(to_cuda(x));
    shifted.push_back(to_cuda(x, 1));
  }
  std::vector<float> wanted(arrays.size());
  largest_magnitudes(wanted, arrays, ctx());
  const SquareGrid grid(*std::max_element(wanted.begin(), wanted.end()));
  const FixedPoint sum = square_sum(arrays, grid, ctx());
  for (const std::vector<Tensor>& xs : {on_device, shifted}) {
    std::vector<float> magnitudes(xs.size(), -1.0f);
    largest_magnitudes(magnitudes, xs, cuda());
    EXPECT_EQ(magnitudes, wanted);
    EXPECT_TRUE(square_sum(xs, grid, cuda()) == sum);
  }
}

TEST_P(CudaFlatOpsTest, LargestMagnitudesShowNonFiniteValues) {
  if (GetParam() == 0) return;
  const Tensor x = random(DType::kFloat32, shape());
  x.data<float>()[GetParam() / 2] = std::numeric_limits<float>::infinity();
  std::vector<float> largest(1);
  const std::vector<Tensor> infinite{to_cuda(x)};
  largest_magnitudes(largest, infinite, cuda());
  EXPECT_EQ(largest[0], std::numeric_limits<float>::infinity());
  x.data<float>()[GetParam() - 1] = -std::nanf("");
  const std::vector<Tensor> nan{to_cuda(x)};
  largest_magnitudes(largest, nan, cuda());
  EXPECT_TRUE(std::isnan(largest[0]));
}

TEST_P(CudaFlatOpsTest, AdamWStep) {
  const Tensor master = random(DType::kFloat32, shape());
  const Tensor m = from(DType::kFloat32, shape(), Values(static_cast<size_t>(GetParam()), 0.0));
  const Tensor gradients[] = {random(DType::kFloat32, shape()),
                              random(DType::kFloat32, shape(), 1e-3)};
  for (const DType dtype : kActivationDTypes) {
    // Two steps, each with its gradient.
    const auto train = [&](const AdamWState& state, const Tensor& weight, OpContext& context,
                           const std::function<Tensor(const Tensor&)>& place) {
      for (int64_t step = 1; step <= 2; ++step) {
        adamw_step(state, weight, place(gradients[step - 1]),
                   {1e-2, 0.9, 0.999, 1e-8, 0.1, step, 0.7}, context);
      }
    };
    const AdamWState state{copy(master), copy(m), copy(m)};
    const Tensor weight = make(dtype, shape());
    train(state, weight, ctx(), [](const Tensor& gradient) { return gradient; });
    expect_bits({state.master, state.m, state.v, weight}, [&](int64_t shift) {
      const AdamWState there{to_cuda(master, shift), to_cuda(m, shift), to_cuda(m, shift)};
      const Tensor weight_there = cuda_make(dtype, shape(), shift);
      train(there, weight_there, cuda(),
            [&](const Tensor& gradient) { return to_cuda(gradient, shift); });
      return Results{there.master, there.m, there.v, weight_there};
    });
  }
}

TEST_P(CudaFlatOpsTest, SgdStep) {
  const Tensor master = random(DType::kFloat32, shape());
  const Tensor gradient = random(DType::kFloat32, shape());
  const SgdScalars scalars{0.1, 0.01, 0.7};
  for (const DType dtype : kActivationDTypes) {
    const Tensor updated = copy(master);
    const Tensor weight = make(dtype, shape());
    sgd_step(updated, weight, gradient, scalars, ctx());
    expect_bits({updated, weight}, [&](int64_t shift) {
      const Tensor there = to_cuda(master, shift);
      const Tensor weight_there = cuda_make(dtype, shape(), shift);
      sgd_step(there, weight_there, to_cuda(gradient, shift), scalars, cuda());
      return Results{there, weight_there};
    });
  }
}

}  // namespace
}  // namespace grpo::ops
