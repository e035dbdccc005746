// Memory of a CUDA device.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "model/core/device_cuda.h"
#include "model/core/errors.h"
#include "model/core/tensor.h"
#include "model/core/workspace.h"
#include "tests/core/cuda_fixture.h"

namespace grpo {
namespace {

using testing::kCuda;

class CudaMemoryTest : public testing::CudaFixture {
 protected:
  static std::vector<uint8_t> bytes_of(const Tensor& tensor) {
    std::vector<uint8_t> bytes(tensor.size_bytes(), 0xAB);
    copy_tensor(Tensor(bytes.data(), tensor.dtype(), tensor.shape(), Device::cpu()), tensor);
    return bytes;
  }
};

TEST_F(CudaMemoryTest, StartsZeroAndIsCounted) {
  {
    const OwnedTensor tensor(allocator_, "weights", DType::kUint8, {1001});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().raw()) % 256, 0u);
    EXPECT_EQ(bytes_of(tensor), std::vector<uint8_t>(1001, 0));
    EXPECT_EQ(allocator_.live_bytes(), 1001u);
  }
  EXPECT_EQ(allocator_.live_bytes(), 0u);
  const OwnedTensor empty(allocator_, "empty", DType::kFloat32, {0, 3});
  EXPECT_NE(empty.view().raw(), nullptr);
  fill_zero(empty);
}

TEST_F(CudaMemoryTest, PoisonAndZeroFill) {
  const OwnedTensor tensor(allocator_, "test", DType::kUint8, {100});
  poison_memory(tensor.view().raw(), 100, kCuda);
  EXPECT_EQ(bytes_of(tensor), std::vector<uint8_t>(100, 0xFF));
  fill_zero(tensor.view().rows(1, 98));
  const std::vector<uint8_t> bytes = bytes_of(tensor);
  EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), 0), 2 * 0xFF);
  EXPECT_EQ(bytes[0], 0xFF);
  EXPECT_EQ(bytes[99], 0xFF);
}

TEST_F(CudaMemoryTest, CopiesThereAcrossAndBack) {
  std::vector<int32_t> sent(1000);
  std::iota(sent.begin(), sent.end(), 5);
  const OwnedTensor first(allocator_, "first", DType::kInt32, {1000});
  const OwnedTensor second(allocator_, "second", DType::kInt32, {1000});
  copy_tensor(first, Tensor(sent.data(), DType::kInt32, {1000}, Device::cpu()));
  copy_tensor(second.view().rows(0, 999), first.view().rows(1, 999));
  std::vector<int32_t> received(1000, -1);
  copy_tensor(Tensor(received.data(), DType::kInt32, {1000}, Device::cpu()), second);
  for (size_t i = 0; i < 999; ++i) ASSERT_EQ(received[i], sent[i + 1]) << i;
  EXPECT_EQ(received[999], 0);
}

// A small copy may return before it is done, but never reads its source afterwards.
TEST_F(CudaMemoryTest, TheSourceOfAnUploadIsFreeAtOnce) {
  constexpr int64_t kUploads = 100;
  for (const int64_t size : {1, 5000, 100'000}) {
    const OwnedTensor there(allocator_, "test", DType::kInt32, {kUploads, size});
    std::vector<int32_t> source(static_cast<size_t>(size));
    for (int32_t i = 0; i < kUploads; ++i) {
      std::fill(source.begin(), source.end(), i + 1);
      copy_tensor(there.view().rows(i, 1),
                  Tensor(source.data(), DType::kInt32, {1, size}, Device::cpu()));
    }
    std::vector<int32_t> received(static_cast<size_t>(kUploads * size));
    copy_tensor(Tensor(received.data(), DType::kInt32, {kUploads, size}, Device::cpu()), there);
    for (size_t i = 0; i < received.size(); ++i) {
      ASSERT_EQ(received[i], static_cast<int32_t>(i) / static_cast<int32_t>(size) + 1) << i;
    }
  }
}

TEST_F(CudaMemoryTest, FreedBlocksAreReusedAndZeroAgain) {
  CudaBlocks blocks(kCuda);
  void* const first = blocks.allocate(1'000'000);
  cuda_fill_bytes(kCuda, first, 0xAB, 1'000'000, Stream::none());
  blocks.free(first, 1'000'000);
  EXPECT_GE(blocks.idle_bytes(), 1'000'000u);
  EXPECT_LE(blocks.idle_bytes(), 1'125'000u);
  void* const again = blocks.allocate(1'000'001);  // of the same block size
  EXPECT_EQ(again, first);
  EXPECT_EQ(blocks.idle_bytes(), 0u);
  const Tensor tensor(again, DType::kUint8, {1'000'001}, kCuda);
  EXPECT_EQ(bytes_of(tensor), std::vector<uint8_t>(1'000'001, 0));
  void* const other = blocks.allocate(10);
  EXPECT_NE(other, again);
  blocks.free(again, 1'000'001);
  blocks.free(other, 10);
  void* const large = blocks.allocate(CudaBlocks::kLargestKeptBytes + 1);
  const size_t before = blocks.idle_bytes();
  blocks.free(large, CudaBlocks::kLargestKeptBytes + 1);
  EXPECT_EQ(blocks.idle_bytes(), before);
}

TEST_F(CudaMemoryTest, WorkspaceScratchIsPoisoned) {
  allocator_.set_poison_scratch(true);
  Workspace workspace(allocator_);
  const Workspace::Scope scope(workspace);
  EXPECT_EQ(bytes_of(workspace.take(DType::kUint8, {65})), std::vector<uint8_t>(65, 0xFF));
}

TEST_F(CudaMemoryTest, OutOfMemoryNamesPhaseOwnerSizeAndWhatFits) {
  allocator_.set_phase("generation");
  const size_t free_bytes = cuda_free_bytes(kCuda);
  try {
    allocator_.allocate("kv_cache", size_t{1} << 50);
    FAIL() << "a device with a petabyte";
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const std::string part :
         {"'generation'", "kv_cache", "1125899906842624 bytes", "cuda:0"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
    const size_t at_most = message.find("at most ");
    ASSERT_NE(at_most, std::string::npos) << message;
    // Other programs may take and give memory meanwhile.
    EXPECT_NEAR(std::stod(message.substr(at_most + 8)), static_cast<double>(free_bytes), 1e9);
  }
  EXPECT_EQ(allocator_.live_bytes(), 0u);
  EXPECT_NO_THROW(allocator_.allocate("small", 8));  // the failure is not seen again
}

TEST_F(CudaMemoryTest, DeviceThatIsNotThere) {
  const Device missing{DeviceKind::kCuda, cuda_device_count()};
  try {
    check_cuda_device(missing);
    FAIL() << "a device too many";
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("there is no " + device_name(missing)),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(check_cuda_device(Device::cpu()), CudaError);
}

// Runs everywhere: what holds where there is no device.
TEST(CudaDeviceTest, WithoutDevicesTheReasonIsSaid) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there are CUDA devices";
  try {
    check_cuda_device(kCuda);
    FAIL() << "a device that is not there";
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA"), std::string::npos) << error.what();
  }
  Allocator allocator(kCuda);
  EXPECT_THROW(allocator.allocate("weights", 8), CudaError);
  EXPECT_THROW(fill_zero(Tensor(nullptr, DType::kFloat32, {2}, kCuda)), CudaError);
  EXPECT_EQ(allocator.live_bytes(), 0u);
}

}  // namespace
}  // namespace grpo
