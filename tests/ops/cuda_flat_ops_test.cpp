// N elements.
#include "model/ops/optimizer_step.h"
#include "model/ops/reduce.h"
#include "tests/ops/cuda_op_test.h"

namespace grpo::ops {
namespace {

class CudaFlatOpsTest : public CudaTest<::testing::TestWithParam<int64_t>> {
 protected:
  Shape shape() const { return {GetParam()}; }
};

// None, one, broken groups, a whole chunk of sum_of_squares, one more, several.
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

TEST_P(CudaFlatOpsTest, SumOfSquares) {
  const Tensor x = random(DType::kFloat32, shape());
  const double wanted = sum_of_squares(x, ctx());
  const double sum = sum_of_squares(to_cuda(x), cuda());
  EXPECT_TRUE(std::abs(sum - wanted) <= kSquareSum * wanted) << sum << ", wanted " << wanted;
  EXPECT_EQ(sum_of_squares(to_cuda(x), cuda()), sum) << "second run";
  EXPECT_EQ(sum_of_squares(to_cuda(x, 1), cuda()), sum) << "unaligned";
}

TEST_P(CudaFlatOpsTest, SumsOfSquaresAreThoseOfEachArray) {
  std::vector<Tensor> arrays;
  std::vector<double> wanted;
  for (const int64_t count : {int64_t{0}, GetParam(), int64_t{5}, int64_t{0}, int64_t{40000}}) {
    arrays.push_back(to_cuda(random(DType::kFloat32, {count}), count % 2));
    wanted.push_back(sum_of_squares(arrays.back(), cuda()));
  }
  std::vector<double> sums(arrays.size(), -1.0);
  sums_of_squares(sums, arrays, cuda());
  EXPECT_EQ(sums, wanted);
}

TEST_P(CudaFlatOpsTest, SumOfSquaresShowsNonFiniteValues) {
  if (GetParam() == 0) return;
  const Tensor x = random(DType::kFloat32, shape());
  x.data<float>()[GetParam() - 1] = std::nanf("");
  EXPECT_TRUE(std::isnan(sum_of_squares(to_cuda(x), cuda())));
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
