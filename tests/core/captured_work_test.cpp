// Recorded work of a CUDA device.
#include "model/core/captured_work.h"

#include <gtest/gtest.h>

#include "model/core/device_cuda.h"
#include "model/core/host_transfer.h"
#include "tests/core/cuda_fixture.h"

namespace grpo {
namespace {

using testing::kCuda;
using CudaCapturedWorkTest = testing::CudaFixture;

TEST_F(CudaCapturedWorkTest, RunsWhenLaunchedAndAsOftenAsLaunched) {
  const OwnedTensor counts(allocator_, "test", DType::kUint8, {4});
  const OwnedTensor copies(allocator_, "test", DType::kUint8, {4});
  const Tensor from = counts;
  const Tensor to = copies;
  CapturedWork work(kCuda, [from, to](Stream stream) {
    cuda_copy_bytes(to.raw(), kCuda, from.raw(), kCuda, 4, stream);
    cuda_fill_bytes(kCuda, from.raw(), 0xAB, 2, stream);
  });
  using Bytes = std::vector<uint8_t>;
  EXPECT_EQ(to_host<uint8_t>(counts), Bytes(4, 0));
  work.launch(Stream::none());
  EXPECT_EQ(to_host<uint8_t>(copies), Bytes(4, 0));
  EXPECT_EQ(to_host<uint8_t>(counts), (Bytes{0xAB, 0xAB, 0, 0}));
  cuda_fill_bytes(kCuda, from.raw(), 7, 4, Stream::none());
  work.launch(Stream::none());
  EXPECT_EQ(to_host<uint8_t>(copies), Bytes(4, 7));
  EXPECT_EQ(to_host<uint8_t>(counts), (Bytes{0xAB, 0xAB, 7, 7}));
}

}  // namespace
}  // namespace grpo
