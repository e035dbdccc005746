// Fixture of the tests that hold CUDA operators against the CPU's: tensors on both devices, and
// comparisons. Without a device that this build can use the tests are skipped with the reason.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/core/device_cuda.h"
#include "model/ops/matrix_library.h"
#include "tests/ops/op_test.h"

namespace grpo::ops {

constexpr Device kTestCuda{DeviceKind::kCuda, 0};

// Empty when operators can run there.
inline std::string why_no_cuda() {
  try {
    check_cuda_device(kTestCuda);
    return "";
  } catch (const CudaError& error) {
    return error.what();
  }
}

class CudaOpTestTensors : public OpTestTensors {
 public:
  CudaOpTestTensors() { cuda_allocator_.set_poison_scratch(true); }

  OpContext& cuda() { return cuda_; }

  // bfloat16 products need it; it needs a device.
  void start_matrix_library() {
    matrix_library_ = std::make_unique<MatrixLibrary>(kTestCuda);
    cuda_.matrix_library = matrix_library_.get();
  }

  // Poisoned memory on the device that starts `shift` elements behind an aligned address.
  Tensor cuda_make(DType dtype, const Shape& shape, int64_t shift = 0) {
    const Shape padded{shape.num_elements() + shift};
    const Tensor& whole = cuda_tensors_.emplace_back(cuda_allocator_, "test", dtype, padded).view();
    poison_memory(whole.raw(), whole.size_bytes(), kTestCuda);
    return whole.rows(shift, shape.num_elements()).reshaped(shape);
  }

  Tensor to_cuda(const Tensor& host, int64_t shift = 0) {
    const Tensor tensor = cuda_make(host.dtype(), host.shape(), shift);
    copy_tensor(tensor, host);
    return tensor;
  }

  Tensor to_host(const Tensor& device) {
    const Tensor tensor = make(device.dtype(), device.shape());
    copy_tensor(tensor, device);
    return tensor;
  }

  using Results = std::vector<Tensor>;

  // run(shift) computes on the device, operands shifted by that many elements. Two runs and a
  // shifted one, which cannot use wide accesses, give the same bits. Returns them on the host.
  Results run_thrice(const std::function<Results(int64_t shift)>& run) {
    const Results first = run_to_host(run, 0);
    for (const int64_t shift : {0, 1}) {
      const Results again = run_to_host(run, shift);
      for (size_t i = 0; i < first.size(); ++i) {
        expect_same_bits(again[i], first[i], shift == 0 ? "second run" : "unaligned operands");
      }
    }
    return first;
  }

  // The device's results are the CPU's to the last bit: for operators whose every rounding is the
  // same on both.
  void expect_bits(const Results& wanted, const std::function<Results(int64_t shift)>& run) {
    const Results results = run_thrice(run);
    ASSERT_EQ(results.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i)
      expect_same_bits(results[i], wanted[i], "CUDA and CPU");
  }

  // The device adds in another order than the CPU.
  void expect_within(Tolerance tolerance, const Results& wanted,
                     const std::function<Results(int64_t shift)>& run) {
    const Results results = run_thrice(run);
    ASSERT_EQ(results.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      expect_close(results[i], values_of(wanted[i]), tolerance, "CUDA and CPU");
    }
  }

 private:
  Results run_to_host(const std::function<Results(int64_t shift)>& run, int64_t shift) {
    Results results = run(shift);
    for (Tensor& result : results) result = to_host(result);
    return results;
  }

  Allocator cuda_allocator_{kTestCuda};
  Workspace cuda_workspace_{cuda_allocator_};
  std::unique_ptr<MatrixLibrary> matrix_library_;
  OpContext cuda_{kTestCuda, Stream::none(), cuda_workspace_};
  std::deque<OwnedTensor> cuda_tensors_;
};

// Base is ::testing::Test or ::testing::TestWithParam.
template <typename Base, typename Tensors = CudaOpTestTensors>
class CudaTest : public Base, public Tensors {
 protected:
  void SetUp() override {
    const std::string reason = why_no_cuda();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

}  // namespace grpo::ops
