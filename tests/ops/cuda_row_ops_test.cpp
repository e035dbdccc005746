// T tokens or rows, D model or columns, F feed-forward size, V vocabulary.
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "model/ops/embedding.h"
#include "model/ops/linear.h"
#include "model/ops/page_copy.h"
#include "model/ops/residual.h"
#include "model/ops/rms_norm.h"
#include "model/ops/rope.h"
#include "model/ops/rows.h"
#include "model/ops/swiglu.h"
#include "tests/ops/cuda_op_test.h"

namespace grpo::ops {
namespace {

constexpr float kEpsilon = 1e-6f;

class CudaRowOpsTest : public CudaTest<::testing::TestWithParam<RowCase>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  int64_t rows() const { return std::get<1>(GetParam()).first; }
  int64_t size() const { return std::get<1>(GetParam()).second; }
  Shape shape() const { return {rows(), size()}; }

  // indices[i] = (a i + b) mod limit for a prime a: distinct when there are at most `limit`, else
  // with repetitions.
  Tensor spread_indices(int64_t count, int64_t limit) {
    std::vector<int32_t> indices;
    for (int64_t i = 0; i < count; ++i)
      indices.push_back(static_cast<int32_t>((7919 * i + 3) % limit));
    return ints({count}, indices);
  }
};

// No rows, one, more than a chunk of a column sum; sizes of 1, primes, whole and broken groups of 4
// and 8, more than a block's threads or a warp's registers hold.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaRowOpsTest,
    ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                       ::testing::Values(std::pair<int64_t, int64_t>{0, 5},
                                         std::pair<int64_t, int64_t>{1, 1},
                                         std::pair<int64_t, int64_t>{3, 7},
                                         std::pair<int64_t, int64_t>{2, 128},
                                         std::pair<int64_t, int64_t>{37, 896},
                                         std::pair<int64_t, int64_t>{130, 1031},
                                         std::pair<int64_t, int64_t>{3, 2053})),
    row_case_name);

TEST_P(CudaRowOpsTest, ResidualAdd) {
  const Tensor a = random(dtype(), shape());
  const Tensor b = random(dtype(), shape());
  const Tensor wanted = make(dtype(), shape());
  residual_add(wanted, a, b, ctx());
  expect_bits({wanted}, [&](int64_t shift) {
    const Tensor out = cuda_make(dtype(), shape(), shift);
    residual_add(out, to_cuda(a, shift), to_cuda(b, shift), cuda());
    return Results{out};
  });
  expect_bits({wanted}, [&](int64_t shift) {
    const Tensor in_place = to_cuda(a, shift);
    residual_add(in_place, in_place, to_cuda(b, shift), cuda());
    return Results{in_place};
  });
}

// Pages of one row's size; every second one is overwritten by some other.
TEST_P(CudaRowOpsTest, CopyPages) {
  const Tensor before = random(dtype(), {3, rows(), size()});
  std::vector<PageCopy> copies;
  for (int32_t page = 1; page < rows(); page += 2) copies.push_back({page, page / 4 * 2});
  const Tensor wanted = copy(before);
  copy_pages(wanted, copies, ctx());
  expect_bits({wanted}, [&](int64_t shift) {
    const Tensor planes = to_cuda(before, shift);
    copy_pages(planes, copies, cuda());
    return Results{planes};
  });
}

TEST_P(CudaRowOpsTest, Swiglu) {
  const Tensor gate_up = random(dtype(), {rows(), 2 * size()}, 4.0);
  const Tensor dout = random(dtype(), shape());
  const Tensor out = make(dtype(), shape());
  const Tensor dgate_up = make(dtype(), gate_up.shape());
  swiglu_forward(out, gate_up, ctx());
  swiglu_backward(dgate_up, dout, gate_up, ctx());
  expect_bits({out, dgate_up}, [&](int64_t shift) {
    const Tensor in = to_cuda(gate_up, shift);
    const Results results{cuda_make(dtype(), shape(), shift),
                          cuda_make(dtype(), gate_up.shape(), shift)};
    swiglu_forward(results[0], in, cuda());
    swiglu_backward(results[1], to_cuda(dout, shift), in, cuda());
    return results;
  });
}

TEST_P(CudaRowOpsTest, RmsNormForward) {
  const Tensor x = random(dtype(), shape(), 3.0);
  const Tensor weight = random(dtype(), {size()});
  const Tensor out = make(dtype(), shape());
  const Tensor rstd = make(DType::kFloat32, {rows()});
  rms_norm_forward(out, rstd, x, weight, kEpsilon, ctx());
  expect_within(kNorm, {out, rstd}, [&](int64_t shift) {
    const Results results{cuda_make(dtype(), shape(), shift),
                          cuda_make(DType::kFloat32, {rows()}, shift)};
    rms_norm_forward(results[0], results[1], to_cuda(x, shift), to_cuda(weight, shift), kEpsilon,
                     cuda());
    return results;
  });
}

// One kernel gives what the two give.
TEST_P(CudaRowOpsTest, RmsNormOfASum) {
  const Tensor x = random(dtype(), shape(), 3.0);
  const Tensor addend = random(dtype(), shape());
  const Tensor weight = random(dtype(), {size()});
  const Tensor sum = cuda_make(dtype(), shape());
  const Tensor normed = cuda_make(dtype(), shape());
  const Tensor rstd = cuda_make(DType::kFloat32, {rows()});
  residual_add(sum, to_cuda(x), to_cuda(addend), cuda());
  rms_norm_forward(normed, rstd, sum, to_cuda(weight), kEpsilon, cuda());
  const Results wanted{to_host(sum), to_host(normed), to_host(rstd)};
  for (const bool in_place : {false, true}) {
    expect_bits(wanted, [&](int64_t shift) {
      const Tensor from = to_cuda(x, shift);
      const Results results{in_place ? from : cuda_make(dtype(), shape(), shift),
                            cuda_make(dtype(), shape(), shift),
                            cuda_make(DType::kFloat32, {rows()}, shift)};
      residual_rms_norm_forward({.sum = results[0], .normed = results[1], .rstd = results[2]}, from,
                                to_cuda(addend, shift), to_cuda(weight, shift), kEpsilon, cuda());
      return results;
    });
  }
}

TEST_P(CudaRowOpsTest, RmsNormRowsDoNotDependOnTheirNumber) {
  const Tensor x = to_cuda(random(dtype(), shape()));
  const Tensor weight = to_cuda(random(dtype(), {size()}));
  const Tensor out = cuda_make(dtype(), shape());
  rms_norm_forward(out, Tensor(), x, weight, kEpsilon, cuda());
  const Tensor alone = cuda_make(dtype(), shape());
  for (int64_t t = 0; t < rows(); ++t) {
    rms_norm_forward(alone.rows(t, 1), Tensor(), x.rows(t, 1), weight, kEpsilon, cuda());
  }
  expect_same_bits(to_host(alone), to_host(out), "rows alone");
}

TEST_P(CudaRowOpsTest, RmsNormBackward) {
  const Tensor x = random(dtype(), shape());
  const Tensor weight = random(dtype(), {size()});
  const Tensor dout = random(dtype(), shape());
  const Tensor rstd = make(DType::kFloat32, {rows()});
  rms_norm_forward(make(dtype(), shape()), rstd, x, weight, kEpsilon, ctx());
  const Tensor dx_before = random(dtype(), shape());
  const Tensor dweight_before = random(DType::kFloat32, {size()});
  for (const bool accumulate : {false, true}) {
    const RmsNormGradients wanted{copy(dx_before), accumulate, copy(dweight_before), accumulate};
    rms_norm_backward(wanted, dout, x, weight, rstd, ctx());
    expect_within(kNorm, {wanted.dx, wanted.dweight}, [&](int64_t shift) {
      const RmsNormGradients gradients{to_cuda(dx_before, shift), accumulate,
                                       to_cuda(dweight_before, shift), accumulate};
      rms_norm_backward(gradients, to_cuda(dout, shift), to_cuda(x, shift), to_cuda(weight, shift),
                        to_cuda(rstd, shift), cuda());
      return Results{gradients.dx, gradients.dweight};
    });
  }
}

TEST_P(CudaRowOpsTest, LinearBackwardBias) {
  const Tensor dout = random(dtype(), shape());
  const Tensor before = random(DType::kFloat32, {size()});
  for (const bool accumulate : {false, true}) {
    const Tensor wanted = copy(before);
    linear_backward_bias(wanted, dout, accumulate, ctx());
    expect_within(kDotProduct, {wanted}, [&](int64_t shift) {
      const Tensor dbias = to_cuda(before, shift);
      linear_backward_bias(dbias, to_cuda(dout, shift), accumulate, cuda());
      return Results{dbias};
    });
  }
}

TEST_P(CudaRowOpsTest, GatherAndScatterRows) {
  const int64_t total = 2 * rows() + 1;
  const Tensor indices = spread_indices(rows(), total);
  const Tensor x = random(dtype(), {total, size()});
  const Tensor picked = make(dtype(), shape());
  const Tensor spread = make(dtype(), x.shape());
  gather_rows(picked, x, indices, ctx());
  scatter_rows(spread, picked, indices, ctx());
  expect_bits({picked, spread}, [&](int64_t shift) {
    const Tensor where = to_cuda(indices);
    const Results results{cuda_make(dtype(), shape(), shift), cuda_make(dtype(), x.shape(), shift)};
    gather_rows(results[0], to_cuda(x, shift), where, cuda());
    scatter_rows(results[1], results[0], where, cuda());
    return results;
  });
}

// Fewer words than rows: many equal tokens, added in ascending t as on the CPU.
TEST_P(CudaRowOpsTest, Embedding) {
  const int64_t vocabulary = rows() / 12 + 2;
  const Tensor tokens = spread_indices(rows(), vocabulary);
  const Tensor weight = random(dtype(), {vocabulary, size()});
  const Tensor dout = random(dtype(), shape());
  const Tensor before = random(DType::kFloat32, weight.shape());
  const Tensor out = make(dtype(), shape());
  embedding_forward(out, tokens, weight, ctx());
  for (const bool accumulate : {false, true}) {
    const Tensor dweight = copy(before);
    embedding_backward(dweight, dout, tokens, accumulate, ctx());
    expect_bits({out, dweight}, [&](int64_t shift) {
      const Tensor ids = to_cuda(tokens);
      const Results results{cuda_make(dtype(), shape(), shift), to_cuda(before, shift)};
      embedding_forward(results[0], ids, to_cuda(weight, shift), cuda());
      embedding_backward(results[1], to_cuda(dout, shift), ids, accumulate, cuda());
      return results;
    });
  }
}

struct RopeSizes {
  int64_t tokens;
  int64_t q_heads;
  int64_t kv_heads;
  int64_t head_dim;
};

class CudaRopeTest : public CudaTest<::testing::TestWithParam<std::tuple<DType, RopeSizes>>> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaRopeTest,
    ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                       ::testing::Values(RopeSizes{0, 2, 1, 8}, RopeSizes{1, 1, 1, 2},
                                         RopeSizes{9, 3, 1, 6}, RopeSizes{5, 4, 2, 8},
                                         RopeSizes{33, 14, 2, 64}, RopeSizes{3, 2, 2, 128})),
    [](const auto& test) {
      const RopeSizes& sizes = std::get<1>(test.param);
      return case_name(std::get<0>(test.param),
                       {sizes.tokens, sizes.q_heads, sizes.kv_heads, sizes.head_dim});
    });

TEST_P(CudaRopeTest, ForwardAndBackward) {
  const auto& [dtype, sizes] = GetParam();
  const DType type = dtype;  // lambdas do not capture structured bindings
  const int64_t count = sizes.tokens;
  const int64_t num_slots = count + 4;  // some stay as they were
  const int64_t max_positions = 50;
  const Shape q_shape{count, sizes.q_heads, sizes.head_dim};
  const Shape slots_shape{num_slots, sizes.kv_heads, sizes.head_dim};
  const Shape packed_shape{count, sizes.kv_heads, sizes.head_dim};
  const Tensor qkv = random(type, {count, (sizes.q_heads + 2 * sizes.kv_heads) * sizes.head_dim});
  const Tensor dq = random(type, q_shape);
  const Tensor dkeys = random(type, packed_shape);
  const Tensor dvalues = random(type, packed_shape);
  std::vector<int32_t> places;
  for (int64_t t = 0; t < count; ++t) {
    places.push_back(static_cast<int32_t>(13 * t % max_positions));
    places.push_back(static_cast<int32_t>(num_slots - 2 - t));
  }
  const Tensor positions = ints({count, 2}, places);
  const Tensor table = make(DType::kFloat32, {max_positions, sizes.head_dim});
  fill_rope_table(table, 1e6);

  const Tensor q = make(type, q_shape);
  const Tensor keys = make(type, slots_shape);
  const Tensor values = make(type, slots_shape);
  const Tensor dqkv = make(type, qkv.shape());
  qkv_rope_forward(q, keys, values, qkv, positions, table, ctx());
  qkv_rope_backward(dqkv, dq, dkeys, dvalues, positions, table, ctx());
  expect_bits({q, keys, values, dqkv}, [&](int64_t shift) {
    const Tensor places_there = to_cuda(positions);
    const Tensor angles = cuda_make(DType::kFloat32, table.shape(), shift);
    fill_rope_table(angles, 1e6);
    const Results results{cuda_make(type, q_shape, shift), cuda_make(type, slots_shape, shift),
                          cuda_make(type, slots_shape, shift), cuda_make(type, qkv.shape(), shift)};
    qkv_rope_forward(results[0], results[1], results[2], to_cuda(qkv, shift), places_there, angles,
                     cuda());
    qkv_rope_backward(results[3], to_cuda(dq, shift), to_cuda(dkeys, shift),
                      to_cuda(dvalues, shift), places_there, angles, cuda());
    return results;
  });
}

class CudaEdgeTest : public CudaTest<::testing::Test> {};

// So many that a block takes several.
TEST_F(CudaEdgeTest, RmsNormOfManyRows) {
  constexpr int64_t kRows = 4098;
  const Tensor x = to_cuda(random(DType::kBfloat16, {kRows, 1050}));
  const Tensor weight = to_cuda(random(DType::kBfloat16, {1050}));
  const Tensor out = cuda_make(DType::kBfloat16, x.shape());
  const Tensor rstd = cuda_make(DType::kFloat32, {kRows});
  rms_norm_forward(out, rstd, x, weight, kEpsilon, cuda());
  for (const int64_t first : {int64_t{0}, int64_t{1001}, kRows - 5}) {
    const Tensor part = cuda_make(DType::kBfloat16, {5, 1050});
    const Tensor part_rstd = cuda_make(DType::kFloat32, {5});
    rms_norm_forward(part, part_rstd, x.rows(first, 5), weight, kEpsilon, cuda());
    expect_same_bits(to_host(out).rows(first, 5), to_host(part), "rows");
    expect_same_bits(to_host(rstd).rows(first, 5), to_host(part_rstd), "rstd");
  }
}

// Where the exponential over- and underflows, and beyond.
TEST_F(CudaEdgeTest, SwigluOfLargeGates) {
  Values values;
  for (double gate = -110.0; gate < 110.0; gate += 0.0371) values.push_back(gate);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double gate : {0.0, -0.0, 1e30, -1e30, infinity, -infinity, std::nan("")}) {
    values.push_back(gate);
  }
  const auto size = static_cast<int64_t>(values.size());
  values.resize(2 * values.size(), 1.0);
  const Tensor gate_up = from(DType::kFloat32, {1, 2 * size}, values);
  const Tensor wanted = make(DType::kFloat32, {1, size});
  swiglu_forward(wanted, gate_up, ctx());
  const Tensor out = cuda_make(DType::kFloat32, {1, size});
  swiglu_forward(out, to_cuda(gate_up), cuda());
  const Values actual = values_of(to_host(out));
  for (int64_t i = 0; i < size; ++i) {
    const double expected = wanted.data<float>()[i];
    const double value = actual[static_cast<size_t>(i)];
    EXPECT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected)))
        << values[static_cast<size_t>(i)] << ": " << value << ", wanted " << expected;
  }
}

// In a process of its own: the device is lost to it afterwards.
TEST_F(CudaEdgeTest, IndexOutOfRangeIsAnError) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto look_up = [&](int32_t token) {
    try {
      const Tensor weight = to_cuda(random(DType::kFloat32, {3, 2}));
      const Tensor out = cuda_make(DType::kFloat32, {1, 2});
      embedding_forward(out, to_cuda(ints({1}, {token})), weight, cuda());
      cuda_synchronize(kTestCuda, Stream::none());
      std::_Exit(0);
    } catch (const CudaError& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(3);
    }
  };
  EXPECT_EXIT(look_up(2), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(look_up(3), ::testing::ExitedWithCode(3),
              "cudaStreamSynchronize.* failed: cudaError");
  EXPECT_EXIT(look_up(-1), ::testing::ExitedWithCode(3),
              "cudaStreamSynchronize.* failed: cudaError");
}

// What holds where no device can be used.
TEST(CudaOperatorsTest, WithoutDevicesAnErrorSaysWhy) {
  if (why_no_cuda().empty()) GTEST_SKIP() << "there is a CUDA device";
  OpTestTensors tensors;
  OpContext context{kTestCuda, Stream::none(), tensors.ctx().workspace};
  const Tensor x(nullptr, DType::kFloat32, {2, 3}, kTestCuda);
  try {
    residual_add(x, x, x, context);
    FAIL() << "an operator on a device that is not there";
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace grpo::ops
