// T tokens, V vocabulary, D model.
#include "model/ops/embedding.h"

#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

class EmbeddingTest : public ::testing::TestWithParam<DType>, public OpTestTensors {};
INSTANTIATE_TEST_SUITE_P(DTypes, EmbeddingTest, ::testing::ValuesIn(kActivationDTypes),
                         dtype_case_name);

TEST_P(EmbeddingTest, ForwardCopiesRows) {
  const Tensor weight = random(GetParam(), {11, 7});
  const std::vector<int32_t> ids{10, 0, 3, 3, 1};
  const Tensor out = make(GetParam(), {5, 7});
  embedding_forward(out, ints({5}, ids), weight, ctx());
  for (size_t t = 0; t < ids.size(); ++t) {
    expect_same_bits(out.rows(static_cast<int64_t>(t), 1), weight.rows(ids[t], 1), "row");
  }
}

// The contract to the last bit: fp32 sums in ascending t.
TEST_P(EmbeddingTest, BackwardAddsInTokenOrder) {
  const int64_t size = 13;
  const std::vector<int32_t> ids{5, 2, 5, 0, 2, 5, 5, 8};
  const auto count = static_cast<int64_t>(ids.size());
  const Tensor dout = random(GetParam(), {count, size});
  for (const bool accumulate : {false, true}) {
    const Tensor dweight = random(DType::kFloat32, {9, size});
    Values sums = accumulate ? values_of(dweight) : Values(static_cast<size_t>(9 * size), 0.0);
    for (size_t t = 0; t < ids.size(); ++t) {
      const Values row = values_of(dout.rows(static_cast<int64_t>(t), 1));
      for (size_t d = 0; d < row.size(); ++d) {
        double& sum = sums[static_cast<size_t>(ids[t]) * row.size() + d];
        sum = static_cast<float>(sum) + static_cast<float>(row[d]);
      }
    }
    embedding_backward(dweight, dout, ints({count}, ids), accumulate, ctx());
    expect_same_bits(dweight, from(DType::kFloat32, {9, size}, sums), "dweight");
  }
}

TEST_P(EmbeddingTest, ZeroTokens) {
  const Tensor weight = random(GetParam(), {3, 2});
  const Tensor none = make(GetParam(), {0, 2});
  embedding_forward(none, ints({0}, {}), weight, ctx());
  const Tensor dweight = make(DType::kFloat32, {3, 2});
  embedding_backward(dweight, none, ints({0}, {}), false, ctx());
  EXPECT_EQ(values_of(dweight), Values(6, 0.0));
}

TEST_P(EmbeddingTest, TokensAndOperandsAreChecked) {
  const Tensor weight = random(GetParam(), {3, 2});
  const Tensor out = make(GetParam(), {1, 2});
  const Tensor dweight = make(DType::kFloat32, {3, 2});
  for (const int32_t token : {-1, 3}) {
    EXPECT_THROW(embedding_forward(out, ints({1}, {token}), weight, ctx()), InternalError);
    EXPECT_THROW(embedding_backward(dweight, out, ints({1}, {token}), false, ctx()), InternalError);
  }
  EXPECT_THROW(embedding_forward(out, ints({2}, {0, 1}), weight, ctx()), InternalError);
  EXPECT_THROW(embedding_forward(out, random(DType::kFloat32, {1}), weight, ctx()), InternalError);
  EXPECT_THROW(
      embedding_backward(random(DType::kBfloat16, {3, 2}), out, ints({1}, {0}), false, ctx()),
      InternalError);
}

}  // namespace
}  // namespace grpo::ops
