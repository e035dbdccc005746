// T tokens, D model.
#include "model/ops/rms_norm.h"

#include "model/ops/residual.h"
#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

constexpr float kEpsilon = 1e-6f;

class RmsNormTest : public ::testing::TestWithParam<RowCase>, public OpTestTensors {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  int64_t rows() const { return std::get<1>(GetParam()).first; }
  int64_t size() const { return std::get<1>(GetParam()).second; }
};

INSTANTIATE_TEST_SUITE_P(Shapes, RmsNormTest,
                         ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                                            ::testing::Values(std::pair<int64_t, int64_t>{1, 1},
                                                              std::pair<int64_t, int64_t>{3, 7},
                                                              std::pair<int64_t, int64_t>{5, 16},
                                                              std::pair<int64_t, int64_t>{2, 97},
                                                              std::pair<int64_t, int64_t>{4, 128})),
                         row_case_name);

Values reference(const Values& x, const Values& weight) {
  const size_t size = weight.size();
  Values out;
  for (size_t t = 0; t < x.size() / size; ++t) {
    double square = 0.0;
    for (size_t d = 0; d < size; ++d) square += x[t * size + d] * x[t * size + d];
    const double rstd = 1.0 / std::sqrt(square / static_cast<double>(size) + double{kEpsilon});
    for (size_t d = 0; d < size; ++d) out.push_back(x[t * size + d] * rstd * weight[d]);
  }
  return out;
}

TEST_P(RmsNormTest, ForwardIsTheFormulaForAnyNumberOfRows) {
  const Tensor x = random(dtype(), {rows(), size()}, 3.0);
  const Tensor weight = random(dtype(), {size()});
  const Tensor out = make(dtype(), x.shape());
  const Tensor rstd = make(DType::kFloat32, {rows()});
  rms_norm_forward(out, rstd, x, weight, kEpsilon, ctx());
  expect_close(out, reference(values_of(x), values_of(weight)), kNorm, "out");
  for (int64_t t = 0; t < rows(); ++t) {
    const Tensor alone = make(dtype(), {1, size()});
    rms_norm_forward(alone, Tensor(), x.rows(t, 1), weight, kEpsilon, ctx());
    expect_same_bits(alone, out.rows(t, 1), "row alone");
  }
}

TEST_P(RmsNormTest, OfASumIsThatOfTheResidualAddition) {
  const Tensor x = random(dtype(), {rows(), size()}, 3.0);
  const Tensor addend = random(dtype(), x.shape());
  const Tensor weight = random(dtype(), {size()});
  const Tensor sum = make(dtype(), x.shape());
  const Tensor normed = make(dtype(), x.shape());
  const Tensor rstd = make(DType::kFloat32, {rows()});
  residual_add(sum, x, addend, ctx());
  rms_norm_forward(normed, rstd, sum, weight, kEpsilon, ctx());
  for (const bool in_place : {false, true}) {
    const Tensor from = copy(x);
    const NormedSum out{.sum = in_place ? from : make(dtype(), x.shape()),
                        .normed = make(dtype(), x.shape()),
                        .rstd = make(DType::kFloat32, {rows()})};
    residual_rms_norm_forward(out, from, addend, weight, kEpsilon, ctx());
    expect_same_bits(out.sum, sum, "sum");
    expect_same_bits(out.normed, normed, "normed");
    expect_same_bits(out.rstd, rstd, "rstd");
    residual_rms_norm_forward({.sum = out.sum, .normed = out.normed, .rstd = {}}, copy(x), addend,
                              weight, kEpsilon, ctx());
    expect_same_bits(out.normed, normed, "normed without rstd");
  }
}

TEST_P(RmsNormTest, BackwardIsTheDerivative) {
  const Tensor x = random(dtype(), {rows(), size()});
  const Tensor weight = random(dtype(), {size()});
  const Tensor dout = random(dtype(), {rows(), size()});
  const Tensor out = make(dtype(), x.shape());
  const Tensor rstd = make(DType::kFloat32, {rows()});
  rms_norm_forward(out, rstd, x, weight, kEpsilon, ctx());
  const RmsNormGradients fresh{make(dtype(), x.shape()), false, make(DType::kFloat32, {size()}),
                               false};
  rms_norm_backward(fresh, dout, x, weight, rstd, ctx());
  const Values weights = values_of(dout);
  expect_gradient(
      fresh.dx, [&](const Values& at) { return dot(reference(at, values_of(weight)), weights); },
      values_of(x), kNorm, "dx");
  expect_gradient(
      fresh.dweight, [&](const Values& at) { return dot(reference(values_of(x), at), weights); },
      values_of(weight), kNorm, "dweight");

  const RmsNormGradients added{random(dtype(), x.shape()), true, random(DType::kFloat32, {size()}),
                               true};
  const Values dx_wanted = plus(values_of(added.dx), values_of(fresh.dx));
  const Values dweight_wanted = plus(values_of(added.dweight), values_of(fresh.dweight));
  rms_norm_backward(added, dout, x, weight, rstd, ctx());
  expect_close(added.dx, dx_wanted, kNorm, "dx added");
  expect_close(added.dweight, dweight_wanted, kNorm, "dweight added");
}

class RmsNormEdgeTest : public OpTest {};

TEST_F(RmsNormEdgeTest, ZeroRows) {
  const Tensor x = make(DType::kFloat32, {0, 5});
  const Tensor rstd = make(DType::kFloat32, {0});
  const Tensor weight = random(DType::kFloat32, {5});
  rms_norm_forward(x, rstd, x, weight, kEpsilon, ctx());
  const RmsNormGradients gradients{x, false, make(DType::kFloat32, {5}), false};
  rms_norm_backward(gradients, x, x, weight, rstd, ctx());
  EXPECT_EQ(values_of(gradients.dweight), Values(5, 0.0));
}

TEST_F(RmsNormEdgeTest, OperandsAreChecked) {
  const Tensor x = random(DType::kFloat32, {2, 5});
  const Tensor rstd = make(DType::kFloat32, {2});
  const Tensor weight = random(DType::kFloat32, {5});
  const auto refused = [&](const Tensor& out, const Tensor& r, const Tensor& w) {
    EXPECT_THROW(rms_norm_forward(out, r, x, w, kEpsilon, ctx()), InternalError);
  };
  refused(make(DType::kFloat32, {2, 4}), rstd, weight);
  refused(make(DType::kBfloat16, {2, 5}), rstd, weight);
  refused(x, make(DType::kFloat32, {3}), weight);
  refused(x, rstd, random(DType::kFloat32, {4}));
  EXPECT_THROW(
      rms_norm_backward({x, false, make(DType::kBfloat16, {5}), false}, x, x, weight, rstd, ctx()),
      InternalError);
}

}  // namespace
}  // namespace grpo::ops
