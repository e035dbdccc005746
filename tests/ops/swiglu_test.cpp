// SwiGLU and the residual sum. T tokens, F feed-forward size.
#include "model/ops/swiglu.h"

#include "model/ops/residual.h"
#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

class SwigluTest : public ::testing::TestWithParam<RowCase>, public OpTestTensors {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  int64_t rows() const { return std::get<1>(GetParam()).first; }
  int64_t size() const { return std::get<1>(GetParam()).second; }
};

INSTANTIATE_TEST_SUITE_P(Shapes, SwigluTest,
                         ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                                            ::testing::Values(std::pair<int64_t, int64_t>{0, 3},
                                                              std::pair<int64_t, int64_t>{1, 1},
                                                              std::pair<int64_t, int64_t>{3, 7},
                                                              std::pair<int64_t, int64_t>{5, 16},
                                                              std::pair<int64_t, int64_t>{2, 101})),
                         row_case_name);

Values reference(const Values& gate_up, size_t size) {
  Values out;
  for (size_t t = 0; t < gate_up.size() / (2 * size); ++t) {
    for (size_t i = 0; i < size; ++i) {
      const double gate = gate_up[t * 2 * size + i];
      out.push_back(gate / (1.0 + std::exp(-gate)) * gate_up[t * 2 * size + size + i]);
    }
  }
  return out;
}

TEST_P(SwigluTest, ForwardIsTheFormulaForAnyNumberOfRows) {
  const Tensor gate_up = random(dtype(), {rows(), 2 * size()}, 3.0);
  const Tensor out = make(dtype(), {rows(), size()});
  swiglu_forward(out, gate_up, ctx());
  expect_close(out, reference(values_of(gate_up), static_cast<size_t>(size())), kElementwise,
               "out");
  for (int64_t t = 0; t < rows(); ++t) {
    const Tensor alone = make(dtype(), {1, size()});
    swiglu_forward(alone, gate_up.rows(t, 1), ctx());
    expect_same_bits(alone, out.rows(t, 1), "row alone");
  }
}

TEST_P(SwigluTest, BackwardIsTheDerivative) {
  const Tensor gate_up = random(dtype(), {rows(), 2 * size()}, 2.0);
  const Tensor dout = random(dtype(), {rows(), size()});
  const Tensor dgate_up = make(dtype(), gate_up.shape());
  swiglu_backward(dgate_up, dout, gate_up, ctx());
  expect_gradient(
      dgate_up,
      [&](const Values& at) {
        return dot(reference(at, static_cast<size_t>(size())), values_of(dout));
      },
      values_of(gate_up), kElementwise, "dgate_up");
}

TEST_P(SwigluTest, ResidualIsOneRoundedSum) {
  const Tensor a = random(dtype(), {rows(), size()});
  const Tensor b = random(dtype(), {rows(), size()}, 0.01);
  const Tensor out = make(dtype(), a.shape());
  residual_add(out, a, b, ctx());
  Values sums = values_of(a);
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = static_cast<float>(sums[i]) + static_cast<float>(values_of(b)[i]);
  }
  expect_same_bits(out, from(dtype(), a.shape(), sums), "out");
  residual_add(a, a, b, ctx());
  expect_same_bits(a, out, "in place");
}

class SwigluEdgeTest : public OpTest {};

TEST_F(SwigluEdgeTest, LargeGatesSaturate) {
  const Tensor gate_up = from(DType::kFloat32, {1, 6}, {-200.0, 200.0, -88.0, 2.0, 2.0, 2.0});
  const Tensor out = make(DType::kFloat32, {1, 3});
  swiglu_forward(out, gate_up, ctx());
  EXPECT_EQ(out.data<float>()[0], 0.0f);
  EXPECT_EQ(out.data<float>()[1], 400.0f);
  EXPECT_NEAR(out.data<float>()[2], 0.0f, 1e-30f);
}

TEST_F(SwigluEdgeTest, OperandsAreChecked) {
  const Tensor out = make(DType::kFloat32, {2, 3});
  EXPECT_THROW(swiglu_forward(out, random(DType::kFloat32, {2, 3}), ctx()), InternalError);
  EXPECT_THROW(swiglu_forward(out, random(DType::kBfloat16, {2, 6}), ctx()), InternalError);
  EXPECT_THROW(
      swiglu_backward(random(DType::kFloat32, {2, 5}), out, random(DType::kFloat32, {2, 6}), ctx()),
      InternalError);
  EXPECT_THROW(residual_add(out, out, random(DType::kFloat32, {3, 2}), ctx()), InternalError);
  EXPECT_THROW(residual_add(out, out, random(DType::kBfloat16, {2, 3}), ctx()), InternalError);
}

}  // namespace
}  // namespace grpo::ops
