// T tokens, I in features, O out features.
#include "model/ops/linear.h"

#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

struct Sizes {
  int64_t t, o, i;
};

using Case = std::tuple<DType, Sizes>;

class LinearTest : public ::testing::TestWithParam<Case>, public OpTestTensors {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  Sizes sizes() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Shapes, LinearTest,
                         ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                                            ::testing::Values(Sizes{1, 1, 1}, Sizes{1, 5, 3},
                                                              Sizes{7, 13, 31}, Sizes{16, 32, 64},
                                                              Sizes{33, 65, 17}, Sizes{3, 129, 130},
                                                              Sizes{131, 40, 257})),
                         [](const auto& test) {
                           const Sizes& s = std::get<1>(test.param);
                           return case_name(std::get<0>(test.param), {s.t, s.o, s.i});
                         });

// The contract, written down: one ascending fma chain, then the bias, then one rounding.
Tensor chain_product(OpTestTensors& tensors, DType out_dtype, const Tensor& x, const Tensor& weight,
                     const Tensor& bias) {
  const Values x_values = values_of(x);
  const Values w_values = values_of(weight);
  const size_t in = static_cast<size_t>(x.size(1));
  const size_t out = static_cast<size_t>(weight.size(0));
  Values result;
  for (size_t t = 0; t < static_cast<size_t>(x.size(0)); ++t) {
    for (size_t o = 0; o < out; ++o) {
      float sum = 0.0f;
      for (size_t i = 0; i < in; ++i) {
        sum = std::fma(static_cast<float>(x_values[t * in + i]),
                       static_cast<float>(w_values[o * in + i]), sum);
      }
      if (!bias.is_absent()) sum += static_cast<float>(values_of(bias)[o]);
      result.push_back(sum);
    }
  }
  return tensors.from(out_dtype, {x.size(0), weight.size(0)}, result);
}

TEST_P(LinearTest, ForwardIsOneAscendingChain) {
  const auto [t, o, i] = sizes();
  const Tensor x = random(dtype(), {t, i});
  const Tensor weight = random(dtype(), {o, i});
  for (const Tensor& bias : {Tensor(), random(dtype(), {o})}) {
    for (const DType out_dtype : {dtype(), DType::kFloat32}) {
      const Tensor out = make(out_dtype, {t, o});
      linear_forward(out, x, weight, bias, ctx());
      expect_same_bits(out, chain_product(*this, out_dtype, x, weight, bias), "out");
    }
  }
}

// rows x columns of a^T or a times b in float64, element (r, c) = sum over k of a(r, k) b(k, c).
template <typename Left, typename Right>
Values product(int64_t rows, int64_t columns, int64_t depth, Left&& a, Right&& b) {
  Values result;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0.0;
      for (int64_t k = 0; k < depth; ++k) sum += a(r, k) * b(k, c);
      result.push_back(sum);
    }
  }
  return result;
}

TEST_P(LinearTest, BackwardIsTheTransposedProduct) {
  const auto [t, o, i] = sizes();
  const Tensor x = random(dtype(), {t, i});
  const Tensor weight = random(dtype(), {o, i});
  for (const DType dout_dtype : {dtype(), DType::kFloat32}) {
    const Tensor dout = random(dout_dtype, {t, o});
    const Values xv = values_of(x);
    const Values wv = values_of(weight);
    const Values dv = values_of(dout);
    const auto at = [](const Values& v, int64_t index) { return v[static_cast<size_t>(index)]; };
    const int64_t num_in = i;
    const int64_t num_out = o;
    const auto dout_at = [&](int64_t row, int64_t out) { return at(dv, row * num_out + out); };
    const Values dx_wanted =
        product(t, i, o, dout_at, [&](int64_t k, int64_t c) { return at(wv, k * num_in + c); });
    const Values dw_wanted = product(
        o, i, t, [&](int64_t r, int64_t k) { return dout_at(k, r); },
        [&](int64_t k, int64_t c) { return at(xv, k * num_in + c); });
    const Values db_wanted = product(
        1, o, t, [](int64_t, int64_t) { return 1.0; }, dout_at);
    const Tensor dx = make(dtype(), {t, i});
    const Tensor dweight = make(DType::kFloat32, {o, i});
    const Tensor dbias = make(DType::kFloat32, {o});
    linear_backward_input(dx, dout, weight, false, ctx());
    linear_backward_weight(dweight, dout, x, false, ctx());
    linear_backward_bias(dbias, dout, false, ctx());
    expect_close(dx, dx_wanted, kDotProduct, "dx");
    expect_close(dweight, dw_wanted, kDotProduct, "dweight");
    expect_close(dbias, db_wanted, kDotProduct, "dbias");

    const Tensor dx_sum = random(dtype(), {t, i});
    const Tensor dweight_sum = random(DType::kFloat32, {o, i});
    const Tensor dbias_sum = random(DType::kFloat32, {o});
    const Values dx_before = values_of(dx_sum);
    const Values dweight_before = values_of(dweight_sum);
    const Values dbias_before = values_of(dbias_sum);
    linear_backward_input(dx_sum, dout, weight, true, ctx());
    linear_backward_weight(dweight_sum, dout, x, true, ctx());
    linear_backward_bias(dbias_sum, dout, true, ctx());
    expect_close(dx_sum, plus(dx_before, dx_wanted), kDotProduct, "dx added");
    expect_close(dweight_sum, plus(dweight_before, dw_wanted), kDotProduct, "dweight added");
    expect_close(dbias_sum, plus(dbias_before, db_wanted), kDotProduct, "dbias added");
  }
}

class LinearInvarianceTest : public ::testing::TestWithParam<DType>, public OpTestTensors {};
INSTANTIATE_TEST_SUITE_P(DTypes, LinearInvarianceTest, ::testing::ValuesIn(kActivationDTypes),
                         dtype_case_name);

TEST_P(LinearInvarianceTest, RowsDoNotDependOnTheirCompany) {
  for (const Sizes s : {Sizes{300, 45, 77}, Sizes{300, 64, 128}, Sizes{300, 3, 1}}) {
    const Tensor x = random(GetParam(), {s.t, s.i});
    const Tensor weight = random(GetParam(), {s.o, s.i});
    const Tensor bias = random(GetParam(), {s.o});
    const Tensor all = make(GetParam(), {s.t, s.o});
    linear_forward(all, x, weight, bias, ctx());
    for (const int64_t count : {1, 2, 3, 7, 16, 33, 64, 130}) {
      for (const int64_t offset : {int64_t{0}, int64_t{5}, s.t - count}) {
        const Tensor some = make(GetParam(), {count, s.o});
        linear_forward(some, x.rows(offset, count), weight, bias, ctx());
        expect_same_bits(some, all.rows(offset, count), "rows");
      }
    }
  }
}

// The negative control: up to kMaxSplitRows rows get two chains an element, others one.
TEST_P(LinearInvarianceTest, ForcedSplitsMakeRowsDependOnTheirCompany) {
  const Tensor x = random(GetParam(), {kMaxSplitRows + 1, 77});
  const Tensor weight = random(GetParam(), {45, 77});
  const Tensor bias = random(GetParam(), {45});
  const auto columns = [&](const Tensor& from, int64_t begin, int64_t end) {
    const Tensor part = make(GetParam(), {from.size(0), end - begin});
    const size_t bytes = dtype_size_bytes(GetParam());
    for (int64_t row = 0; row < from.size(0); ++row) {
      std::memcpy(part.rows(row, 1).raw(),
                  static_cast<const std::byte*>(from.rows(row, 1).raw()) +
                      static_cast<size_t>(begin) * bytes,
                  static_cast<size_t>(end - begin) * bytes);
    }
    return part;
  };
  const Tensor whole = make(DType::kFloat32, {kMaxSplitRows + 1, 45});
  const Tensor first = make(DType::kFloat32, whole.shape());
  const Tensor second = make(DType::kFloat32, whole.shape());
  linear_forward(whole, x, weight, bias, ctx());
  linear_forward(first, columns(x, 0, 38), columns(weight, 0, 38), Tensor(), ctx());
  linear_forward(second, columns(x, 38, 77), columns(weight, 38, 77), Tensor(), ctx());
  Values sums = values_of(first);
  for (size_t i = 0; i < sums.size(); ++i) {
    const float both = first.data<float>()[i] + second.data<float>()[i];
    sums[i] = both + static_cast<float>(values_of(bias)[i % 45]);
  }
  const Tensor split = from(DType::kFloat32, whole.shape(), sums);
  ctx().numerics.split_k = SplitK::kForced;
  const Tensor out = make(DType::kFloat32, whole.shape());
  linear_forward(out, x, weight, bias, ctx());
  expect_same_bits(out, whole, "more rows");
  linear_forward(out.rows(0, kMaxSplitRows), x.rows(0, kMaxSplitRows), weight, bias, ctx());
  expect_same_bits(out.rows(0, kMaxSplitRows), split.rows(0, kMaxSplitRows), "few rows");
  EXPECT_NE(0, std::memcmp(split.raw(), whole.raw(), whole.size_bytes()));
}

TEST_P(LinearInvarianceTest, OutFeaturesDoNotDependOnTheirCompany) {
  const Tensor x = random(GetParam(), {9, 77});
  const Tensor weight = random(GetParam(), {70, 77});
  const Tensor all = make(DType::kFloat32, {9, 70});
  linear_forward(all, x, weight, Tensor(), ctx());
  for (const int64_t offset : {0, 1, 31, 33, 69}) {
    const Tensor one = make(DType::kFloat32, {9, 1});
    linear_forward(one, x, weight.rows(offset, 1), Tensor(), ctx());
    for (int64_t t = 0; t < 9; ++t) {
      EXPECT_EQ(one.data<float>()[t], all.data<float>()[t * 70 + offset]) << t << " " << offset;
    }
  }
}

TEST_P(LinearInvarianceTest, NonFiniteRowsStayAlone) {
  const Tensor x = random(GetParam(), {5, 19});
  const Tensor weight = random(GetParam(), {11, 19});
  const Tensor clean = make(GetParam(), {5, 11});
  linear_forward(clean, x, weight, Tensor(), ctx());
  poison_memory(x.rows(2, 1).raw(), x.rows(2, 1).size_bytes(), Device::cpu());
  const Tensor dirty = make(GetParam(), {5, 11});
  linear_forward(dirty, x, weight, Tensor(), ctx());
  expect_same_bits(dirty.rows(0, 2), clean.rows(0, 2), "rows before");
  expect_same_bits(dirty.rows(3, 2), clean.rows(3, 2), "rows behind");
  for (const double value : values_of(dirty.rows(2, 1))) EXPECT_TRUE(std::isnan(value));
}

class LinearEdgeTest : public OpTest {};

TEST_F(LinearEdgeTest, ZeroRows) {
  const Tensor x = make(DType::kFloat32, {0, 3});
  const Tensor weight = random(DType::kFloat32, {5, 3});
  const Tensor out = make(DType::kFloat32, {0, 5});
  linear_forward(out, x, weight, Tensor(), ctx());
  linear_backward_input(x, out, weight, false, ctx());
  const Tensor dweight = make(DType::kFloat32, {5, 3});
  const Tensor dbias = make(DType::kFloat32, {5});
  linear_backward_weight(dweight, out, x, false, ctx());
  linear_backward_bias(dbias, out, false, ctx());
  EXPECT_EQ(values_of(dweight), Values(15, 0.0));
  EXPECT_EQ(values_of(dbias), Values(5, 0.0));
  const Tensor kept = copy(weight);
  linear_backward_weight(kept, out, x, true, ctx());
  expect_same_bits(kept, weight, "accumulated nothing");
}

TEST_F(LinearEdgeTest, OperandsAreChecked) {
  const Tensor x = random(DType::kFloat32, {2, 3});
  const Tensor weight = random(DType::kFloat32, {5, 3});
  const Tensor out = make(DType::kFloat32, {2, 5});
  const Tensor none;
  EXPECT_THROW(linear_forward(out, none, weight, none, ctx()), InternalError);
  EXPECT_THROW(linear_forward(make(DType::kFloat32, {2, 4}), x, weight, none, ctx()),
               InternalError);
  EXPECT_THROW(linear_forward(make(DType::kBfloat16, {2, 5}), x, weight, none, ctx()),
               InternalError);
  EXPECT_THROW(linear_forward(out, x, random(DType::kFloat32, {5, 4}), none, ctx()), InternalError);
  EXPECT_THROW(linear_forward(out, x, random(DType::kBfloat16, {5, 3}), none, ctx()),
               InternalError);
  EXPECT_THROW(linear_forward(out, x, weight, random(DType::kFloat32, {4}), ctx()), InternalError);
  EXPECT_THROW(linear_backward_input(x, random(DType::kFloat32, {3, 5}), weight, false, ctx()),
               InternalError);
  EXPECT_THROW(linear_backward_weight(random(DType::kBfloat16, {5, 3}), out, x, false, ctx()),
               InternalError);
  EXPECT_THROW(linear_backward_bias(random(DType::kFloat32, {2}), out, false, ctx()),
               InternalError);
}

TEST_F(LinearEdgeTest, MessageNamesOperandAndShapes) {
  try {
    linear_forward(make(DType::kFloat32, {2, 5}), random(DType::kFloat32, {2, 3}),
                   random(DType::kFloat32, {5, 4}), Tensor(), ctx());
    FAIL() << "a weight of the wrong shape was taken";
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(),
                 "linear_forward: weight is float32 [5, 4] on cpu, wanted float32 [5, 3] on cpu");
  }
}

TEST_F(LinearEdgeTest, OtherDeviceIsRefused) {
  const Device cuda{DeviceKind::kCuda, 0};
  OpContext cuda_ctx{cuda, Stream::none(), ctx().workspace};
  const Tensor x(nullptr, DType::kFloat32, {2, 3}, cuda);
  const Tensor weight(nullptr, DType::kFloat32, {5, 3}, cuda);
  const Tensor out(nullptr, DType::kFloat32, {2, 5}, cuda);
  EXPECT_THROW(linear_forward(out, random(DType::kFloat32, {2, 3}), weight, Tensor(), cuda_ctx),
               InternalError);
  EXPECT_THROW(linear_forward(out, x, weight, Tensor(), cuda_ctx), Error);
}

}  // namespace
}  // namespace grpo::ops
