// T tokens, H query heads, G key/value heads, K head dim.
#include "model/ops/rope.h"

#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

constexpr double kTheta = 10000.0;
constexpr int64_t kMaxPositions = 50;

struct Sizes {
  int64_t t, heads, kv_heads, head_dim;
};

using Case = std::tuple<DType, Sizes>;

class RopeTest : public ::testing::TestWithParam<Case>, public OpTestTensors {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  Sizes sizes() const { return std::get<1>(GetParam()); }

  Tensor table() {
    const Tensor filled = make(DType::kFloat32, {kMaxPositions, sizes().head_dim});
    fill_rope_table(filled, kTheta);
    return filled;
  }
  // Row t stands at position 7 t modulo the maximum and goes to slot t.
  Tensor positions() {
    std::vector<int32_t> values;
    for (int64_t t = 0; t < sizes().t; ++t) {
      values.push_back(static_cast<int32_t>(7 * t % kMaxPositions));
      values.push_back(static_cast<int32_t>(t));
    }
    return ints({sizes().t, 2}, values);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, RopeTest,
    ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                       ::testing::Values(Sizes{0, 2, 1, 8}, Sizes{1, 1, 1, 2}, Sizes{5, 4, 2, 8},
                                         Sizes{9, 7, 1, 24})),
    [](const auto& test) {
      const Sizes& s = std::get<1>(test.param);
      return case_name(std::get<0>(test.param), {s.t, s.heads, s.kv_heads, s.head_dim});
    });

// Turned q and k heads, then v heads, in the columns of qkv.
Values reference(const Values& qkv, const Values& table, const Sizes& sizes) {
  Values out = qkv;
  const size_t head_dim = static_cast<size_t>(sizes.head_dim);
  const size_t half = head_dim / 2;
  const size_t heads = static_cast<size_t>(sizes.heads + 2 * sizes.kv_heads);
  for (size_t t = 0; t < static_cast<size_t>(sizes.t); ++t) {
    const double* angles = table.data() + 7 * t % kMaxPositions * head_dim;
    for (size_t h = 0; h < static_cast<size_t>(sizes.heads + sizes.kv_heads); ++h) {
      const double* in = qkv.data() + (t * heads + h) * head_dim;
      double* turned = out.data() + (t * heads + h) * head_dim;
      for (size_t i = 0; i < half; ++i) {
        turned[i] = in[i] * angles[i] - in[i + half] * angles[half + i];
        turned[i + half] = in[i + half] * angles[i] + in[i] * angles[half + i];
      }
    }
  }
  return out;
}

// q, keys and values side by side as rows of qkv.
Values joined(const Tensor& q, const Tensor& keys, const Tensor& values) {
  Values out;
  for (int64_t t = 0; t < q.size(0); ++t) {
    for (const Tensor& part : {q, keys, values}) {
      const Values row = values_of(part.rows(t, 1));
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

TEST_P(RopeTest, ForwardTurnsAndSplits) {
  const auto [t, heads, kv_heads, head_dim] = sizes();
  const Tensor qkv = random(dtype(), {t, (heads + 2 * kv_heads) * head_dim});
  const Tensor q = make(dtype(), {t, heads, head_dim});
  const Tensor keys = make(dtype(), {t, kv_heads, head_dim});
  const Tensor values = make(dtype(), {t, kv_heads, head_dim});
  const Tensor angles = table();
  qkv_rope_forward(q, keys, values, qkv, positions(), angles, ctx());
  const Values wanted = reference(values_of(qkv), values_of(angles), sizes());
  expect_close(joined(q, keys, values), wanted, kElementwise.of(dtype()), "q, k, v");
}

TEST_P(RopeTest, BackwardIsTheDerivative) {
  const auto [t, heads, kv_heads, head_dim] = sizes();
  const Tensor dq = random(dtype(), {t, heads, head_dim});
  const Tensor dkeys = random(dtype(), {t, kv_heads, head_dim});
  const Tensor dvalues = random(dtype(), {t, kv_heads, head_dim});
  const Tensor dqkv = make(dtype(), {t, (heads + 2 * kv_heads) * head_dim});
  const Tensor angles = table();
  qkv_rope_backward(dqkv, dq, dkeys, dvalues, positions(), angles, ctx());
  const Values weights = joined(dq, dkeys, dvalues);
  const Values table_values = values_of(angles);
  const Sizes s = sizes();
  expect_gradient(
      dqkv, [&](const Values& at) { return dot(reference(at, table_values, s), weights); },
      values_of(random(dtype(), dqkv.shape())), kElementwise, "dqkv");
}

class RopeEdgeTest : public OpTest {};

TEST_F(RopeEdgeTest, TableFollowsTheAngles) {
  const Tensor table = make(DType::kFloat32, {1000, 8});
  fill_rope_table(table, 1e6);
  for (const int64_t position : {0, 1, 17, 999}) {
    for (int64_t i = 0; i < 4; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(1e6, -2.0 * static_cast<double>(i) / 8.0);
      // The angle is rounded to float32 twice: 2^-23 of 999 radians.
      EXPECT_NEAR(table.data<float>()[position * 8 + i], std::cos(angle), 1.5e-4);
      EXPECT_NEAR(table.data<float>()[position * 8 + 4 + i], std::sin(angle), 1.5e-4);
    }
  }
  EXPECT_EQ(table.data<float>()[0], 1.0f);
  EXPECT_EQ(table.data<float>()[4], 0.0f);
}

TEST_F(RopeEdgeTest, KeysAndValuesGoToTheirSlots) {
  const Tensor qkv = random(DType::kFloat32, {2, 6});
  const Tensor q = make(DType::kFloat32, {2, 1, 2});
  const Tensor keys = make(DType::kFloat32, {4, 1, 2});
  const Tensor values = make(DType::kFloat32, {4, 1, 2});
  const Tensor table = make(DType::kFloat32, {3, 2});
  fill_rope_table(table, kTheta);
  qkv_rope_forward(q, keys, values, qkv, ints({2, 2}, {0, 3, 0, 1}), table, ctx());
  EXPECT_EQ(values_of(values.rows(3, 1)), (Values{qkv.data<float>()[4], qkv.data<float>()[5]}));
  EXPECT_EQ(values_of(values.rows(1, 1)), (Values{qkv.data<float>()[10], qkv.data<float>()[11]}));
  EXPECT_EQ(values_of(keys.rows(3, 1)), (Values{qkv.data<float>()[2], qkv.data<float>()[3]}));
  for (const int64_t untouched : {0, 2}) {
    for (const double value : values_of(values.rows(untouched, 1))) EXPECT_TRUE(std::isnan(value));
  }
}

TEST_F(RopeEdgeTest, OperandsPositionsAndSlotsAreChecked) {
  const Tensor qkv = random(DType::kFloat32, {1, 6});
  const Tensor q = make(DType::kFloat32, {1, 1, 2});
  const Tensor kv = make(DType::kFloat32, {2, 1, 2});
  const Tensor table = make(DType::kFloat32, {3, 2});
  fill_rope_table(table, kTheta);
  const auto refused = [&](const Tensor& wide, const Tensor& at) {
    EXPECT_THROW(qkv_rope_forward(q, kv, kv, wide, at, table, ctx()), InternalError);
  };
  refused(qkv, ints({1, 2}, {3, 0}));
  refused(qkv, ints({1, 2}, {-1, 0}));
  refused(qkv, ints({1, 2}, {0, 2}));
  refused(qkv, ints({1, 2}, {0, -1}));
  refused(random(DType::kFloat32, {1, 8}), ints({1, 2}, {0, 0}));
  refused(random(DType::kBfloat16, {1, 6}), ints({1, 2}, {0, 0}));
  EXPECT_THROW(fill_rope_table(make(DType::kFloat32, {3, 3}), kTheta), InternalError);
}

}  // namespace
}  // namespace grpo::ops
