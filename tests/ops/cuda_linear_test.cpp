// T tokens, I in features, O out features.
#include "model/ops/linear.h"
#include "tests/ops/cuda_op_test.h"

namespace grpo::ops {
namespace {

struct Sizes {
  int64_t t, o, i;
};

// bfloat16 operands on the device are held against float32 ones of the same values on the CPU.
class CudaLinearTest : public CudaTest<::testing::TestWithParam<std::tuple<DType, Sizes>>> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) start_matrix_library();
  }

  DType dtype() const { return std::get<0>(GetParam()); }
  Sizes sizes() const { return std::get<1>(GetParam()); }

  Tensor widened(const Tensor& tensor) {
    return tensor.is_absent() ? tensor : from(DType::kFloat32, tensor.shape(), values_of(tensor));
  }

  // Backward products: two runs give the same bits; operands at other places may be multiplied by
  // another algorithm. In float32 everything is the CPU's to the last bit.
  void expect_gradient_product(Tolerance tolerance, const Tensor& wanted,
                               const std::function<Tensor(int64_t shift)>& run) {
    if (dtype() == DType::kFloat32) {
      expect_bits({wanted}, [&](int64_t shift) { return Results{run(shift)}; });
      return;
    }
    const Tensor first = to_host(run(0));
    expect_same_bits(to_host(run(0)), first, "second run");
    expect_close(first, values_of(wanted), tolerance, "CUDA and CPU");
    expect_close(to_host(run(1)), values_of(wanted), tolerance, "unaligned operands");
  }
};

// One of everything, primes, widths that are no multiple of 8, model shapes.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaLinearTest,
    ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                       ::testing::Values(Sizes{0, 5, 3}, Sizes{1, 1, 1}, Sizes{1, 5, 3},
                                         Sizes{7, 13, 31}, Sizes{16, 32, 64}, Sizes{33, 65, 17},
                                         Sizes{3, 129, 136}, Sizes{131, 40, 257},
                                         Sizes{64, 100, 131}, Sizes{257, 1152, 896},
                                         Sizes{19, 896, 4864})),
    [](const auto& test) {
      const Sizes& s = std::get<1>(test.param);
      return case_name(std::get<0>(test.param), {s.t, s.o, s.i});
    });

TEST_P(CudaLinearTest, Forward) {
  const auto [t, o, i] = sizes();
  const Tensor x = random(dtype(), {t, i});
  const Tensor weight = random(dtype(), {o, i});
  for (const DType product : {dtype(), DType::kFloat32}) {
    for (const Tensor& bias : {Tensor(), random(dtype(), {o}, 20.0)}) {
      const Tensor wanted = make(DType::kFloat32, {t, o});
      linear_forward(wanted, widened(x), widened(weight), widened(bias), ctx());
      const auto run = [&](int64_t shift) {
        const Tensor out = cuda_make(product, wanted.shape(), shift);
        linear_forward(out, to_cuda(x, shift), to_cuda(weight, shift),
                       bias.is_absent() ? bias : to_cuda(bias, shift), cuda());
        return Results{out};
      };
      if (dtype() == DType::kFloat32) {
        expect_bits({wanted}, run);
      } else {
        expect_within(kTensorCoreProduct, {wanted}, run);
      }
    }
  }
}

TEST_P(CudaLinearTest, BackwardInput) {
  const auto [t, o, i] = sizes();
  const Tensor weight = random(dtype(), {o, i});
  const Tensor before = random(dtype(), {t, i});
  for (const DType gradient : {dtype(), DType::kFloat32}) {
    const Tensor dout = random(gradient, {t, o});
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(fmt::format("gradient {}, accumulate {}", dtype_name(gradient), accumulate));
      const Tensor wanted = widened(before);
      linear_backward_input(wanted, widened(dout), widened(weight), accumulate, ctx());
      expect_gradient_product(gradient == dtype() ? kTensorCoreProduct : kRoundedGradientProduct,
                              wanted, [&](int64_t shift) {
                                const Tensor dx = to_cuda(before, shift);
                                linear_backward_input(dx, to_cuda(dout, shift),
                                                      to_cuda(weight, shift), accumulate, cuda());
                                return dx;
                              });
    }
  }
}

TEST_P(CudaLinearTest, BackwardWeight) {
  const auto [t, o, i] = sizes();
  const Tensor x = random(dtype(), {t, i});
  const Tensor before = random(DType::kFloat32, {o, i});
  for (const DType gradient : {dtype(), DType::kFloat32}) {
    const Tensor dout = random(gradient, {t, o});
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(fmt::format("gradient {}, accumulate {}", dtype_name(gradient), accumulate));
      const Tensor wanted = copy(before);
      linear_backward_weight(wanted, widened(dout), widened(x), accumulate, ctx());
      expect_gradient_product(gradient == dtype() ? kTensorCoreProduct : kRoundedGradientProduct,
                              wanted, [&](int64_t shift) {
                                const Tensor dweight = to_cuda(before, shift);
                                linear_backward_weight(dweight, to_cuda(dout, shift),
                                                       to_cuda(x, shift), accumulate, cuda());
                                return dweight;
                              });
    }
  }
}

struct RowsCase {
  int64_t o, i;
  bool has_bias;
  DType product;
  int64_t max_rows;
};

class CudaLinearRowsTest : public CudaTest<::testing::TestWithParam<std::tuple<DType, RowsCase>>> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) start_matrix_library();
  }
};

// The Qwen2.5-0.5B products, and odd ones; all rows up to 8192 where that is quick.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaLinearRowsTest,
    ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                       ::testing::Values(RowsCase{1152, 896, true, DType::kBfloat16, 8192},
                                         RowsCase{896, 896, false, DType::kBfloat16, 8192},
                                         RowsCase{9728, 896, false, DType::kBfloat16, 2048},
                                         RowsCase{896, 4864, false, DType::kBfloat16, 4096},
                                         RowsCase{151936, 896, false, DType::kFloat32, 130},
                                         RowsCase{131, 100, true, DType::kBfloat16, 1031},
                                         RowsCase{100, 131, false, DType::kFloat32, 1031},
                                         RowsCase{100, 131, true, DType::kFloat32, 1031})),
    [](const auto& test) {
      const RowsCase& c = std::get<1>(test.param);
      return case_name(std::get<0>(test.param), {c.o, c.i}) + (c.has_bias ? "_bias_" : "_") +
             std::string(dtype_name(c.product));
    });

// Row r of x repeats row r % kPeriod, a prime; all passes over any rows of x must give the rows of
// a pass over the first kPeriod.
TEST_P(CudaLinearRowsTest, RowsDoNotDependOnTheirNumberAndPlace) {
  constexpr int64_t kPeriod = 67;
  const DType dtype = std::get<0>(GetParam());
  const RowsCase c = std::get<1>(GetParam());
  const DType product = dtype == DType::kFloat32 ? dtype : c.product;
  const Tensor weight = cuda_make(dtype, {c.o, c.i});
  const Tensor pattern = random(dtype, {1031, c.i});  // a prime: repeats are not periodic in o
  for (int64_t o = 0; o < c.o; o += 1031) {
    const int64_t count = std::min<int64_t>(1031, c.o - o);
    copy_tensor(weight.rows(o, count), pattern.rows(0, count));
  }
  const Tensor bias = c.has_bias ? to_cuda(random(dtype, {c.o})) : Tensor();
  const Tensor x = cuda_make(dtype, {c.max_rows, c.i});
  const Tensor first = random(dtype, {kPeriod, c.i});
  for (int64_t row = 0; row < c.max_rows; row += kPeriod) {
    const int64_t count = std::min(kPeriod, c.max_rows - row);
    copy_tensor(x.rows(row, count), first.rows(0, count));
  }
  const Tensor on_device = cuda_make(product, {kPeriod, c.o});
  linear_forward(on_device, x.rows(0, kPeriod), weight, bias, cuda());
  const Tensor wanted = to_host(on_device);
  const Tensor out = cuda_make(product, {c.max_rows, c.o});
  for (const int64_t count :
       {1, 2, 7, 16, 17, 33, 64, 100, 128, 129, 200, 256, 512, 777, 1024, 2048, 4093, 8192}) {
    if (count > c.max_rows) break;
    for (const int64_t begin : {int64_t{0}, std::min<int64_t>(c.max_rows - count, 5)}) {
      poison_memory(out.raw(), out.size_bytes(), kTestCuda);
      linear_forward(out.rows(begin, count), x.rows(begin, count), weight, bias, cuda());
      const Tensor rows = to_host(out.rows(begin, count));
      for (int64_t row = 0; row < count; ++row) {
        ASSERT_EQ(
            0, std::memcmp(rows.rows(row, 1).raw(), wanted.rows((begin + row) % kPeriod, 1).raw(),
                           rows.rows(row, 1).size_bytes()))
            << "row " << row << " of " << count << " from row " << begin;
      }
    }
  }
  check_linear_exactness(weight, bias, product, std::min<int64_t>(c.max_rows, 2048), cuda());
}

class CudaLinearSplitTest : public CudaTest<::testing::TestWithParam<DType>> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) start_matrix_library();
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, CudaLinearSplitTest, ::testing::ValuesIn(kActivationDTypes),
                         dtype_case_name);

// Fast mode and the negative control on a product that the library likes to split (the down
// projection of Qwen2.5-0.5B): close to exact mode; forced, with other bits, which the probe of
// exact mode notices.
TEST_P(CudaLinearSplitTest, SplitSumsAreCloseAndNoticed) {
  const Tensor weight = to_cuda(random(GetParam(), {896, 4864}));
  const Tensor bias = to_cuda(random(GetParam(), {896}));
  const Tensor x = to_cuda(random(GetParam(), {64, 4864}));
  const auto run = [&](SplitK split_k) {
    cuda().numerics.split_k = split_k;
    const Tensor out = cuda_make(DType::kFloat32, {64, 896});
    linear_forward(out, x, weight, bias, cuda());
    return to_host(out);
  };
  const Tensor exact = run(SplitK::kNever);
  expect_close(run(SplitK::kAllowed), values_of(exact), kTensorCoreProduct, "allowed");
  const Tensor forced = run(SplitK::kForced);
  expect_close(forced, values_of(exact), kTensorCoreProduct, "forced");
  EXPECT_NE(0, std::memcmp(forced.raw(), exact.raw(), exact.size_bytes()));
  expect_same_bits(run(SplitK::kForced), forced, "again");
  expect_same_bits(run(SplitK::kNever), exact, "exact again");
  check_linear_exactness(weight, bias, GetParam(), 2048, cuda());
  cuda().numerics.split_k = SplitK::kForced;
  try {
    check_linear_exactness(weight, bias, DType::kFloat32, 2048, cuda());
    FAIL() << "not noticed";
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("[896, 4864]"), std::string::npos) << error.what();
  }
}

class CudaLinearLimitsTest : public CudaTest<::testing::Test> {};

TEST_F(CudaLinearLimitsTest, AShapeWithoutAnAlgorithmIsNamed) {
  start_matrix_library();
  constexpr int64_t kTooLong = int64_t{1} << 40;
  const Tensor out = cuda_make(DType::kBfloat16, {16, 64});
  // Never read: there is no such product.
  const Tensor x(out.raw(), DType::kBfloat16, {16, kTooLong}, out.device());
  const Tensor weight(out.raw(), DType::kBfloat16, {64, kTooLong}, out.device());
  try {
    linear_forward(out, x, weight, Tensor(), cuda());
    FAIL() << "an algorithm was found";
  } catch (const CudaError& error) {
    EXPECT_EQ(std::string(error.what()),
              "linear_forward: cuBLASLt has no algorithm without split-K for "
              "[16, 1099511627776] x [1099511627776, 64] bfloat16 to bfloat16 on cuda:0");
  }
}

class CudaLinearCandidatesTest : public CudaTest<::testing::Test> {};

// What numerics contract 1 rests on: any of them may serve any number of rows.
TEST_F(CudaLinearCandidatesTest, EveryExactAlgorithmGivesTheSameBits) {
  start_matrix_library();
  MatrixLibrary& library = *cuda().matrix_library;
  const Tensor x = to_cuda(random(DType::kBfloat16, {333, 896}));
  const Tensor weight = to_cuda(random(DType::kBfloat16, {1152, 896}));
  const Tensor bias = to_cuda(random(DType::kBfloat16, {1152}));
  Tensor first;
  std::vector<std::string> algorithms;
  for (int rank = 0; rank < 8; ++rank) {
    library.set_candidate_rank(rank);
    const Tensor out = cuda_make(DType::kBfloat16, {333, 1152});
    linear_forward(out, x, weight, bias, cuda());
    algorithms.push_back(library.describe_latest());
    if (rank == 0) first = to_host(out);
    expect_same_bits(to_host(out), first, algorithms.back().c_str());
  }
  EXPECT_NE(algorithms[1], algorithms[0]);
}

// Left alone, the library takes slow ones for few rows of so long a sum.
TEST_F(CudaLinearCandidatesTest, FewRowsTakeTheKindOfAlgorithmThatManyTake) {
  start_matrix_library();
  const Tensor x = to_cuda(random(DType::kBfloat16, {512, 4864}));
  const Tensor weight = to_cuda(random(DType::kBfloat16, {896, 4864}));
  const auto run = [&](int64_t rows) {
    const Tensor out = cuda_make(DType::kBfloat16, {rows, 896});
    linear_forward(out, x.rows(0, rows), weight, Tensor(), cuda());
    const std::string algorithm = cuda().matrix_library->describe_latest();
    return std::pair(to_host(out), algorithm.substr(0, algorithm.find(',')));
  };
  const auto [all, kind] = run(512);
  for (const int64_t rows : {1, 16, 33, 64, 128, 200, 256}) {
    const auto [few, kind_of_few] = run(rows);
    EXPECT_EQ(kind_of_few, kind) << rows;
    expect_same_bits(few, all.rows(0, rows), "few rows");
  }
}

TEST(CudaLinearWithoutDevicesTest, MatrixLibraryIsNeeded) {
  OpTestTensors tensors;
  OpContext context{kTestCuda, Stream::none(), tensors.ctx().workspace};
  const Tensor x(nullptr, DType::kBfloat16, {8, 8}, kTestCuda);
  EXPECT_THROW(linear_forward(x, x, x, Tensor(), context), Error);
}

TEST(MatrixLibraryTest, HoldsNothingOnTheCpu) { const MatrixLibrary library(Device::cpu()); }

TEST(MatrixLibraryTest, RowBuckets) {
  std::vector<int64_t> buckets;
  for (int64_t rows = 0; rows < 1024; rows = buckets.back()) {
    buckets.push_back(row_bucket(rows + 1));
    EXPECT_EQ(row_bucket(buckets.back()), buckets.back());
  }
  EXPECT_EQ(buckets,
            (std::vector<int64_t>{16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}));
}

}  // namespace
}  // namespace grpo::ops
