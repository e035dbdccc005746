// The fake device itself: what reads or writes its memory from the host ends the test program.
#include <gtest/gtest.h>

#include "model/core/device_stream.h"
#include "model/core/host_transfer.h"
#include "model/ops/reduce.h"
#include "tests/fake_cuda/fake_memory.h"

namespace grpo::testing {
namespace {

constexpr Device kCuda{DeviceKind::kCuda, 0};

TEST(FakeCudaDeathTest, TheHostCannotTouchItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Allocator allocator(kCuda);
  const OwnedTensor tensor(allocator, "test", DType::kFloat32, {4});
  const volatile float* const values = tensor.view().data<float>();
  EXPECT_DEATH((void)values[0], "");  // a signal, or a sanitizer's report of it
  EXPECT_DEATH(tensor.view().data<float>()[0] = 1.0f, "");
}

TEST(FakeCuda, TransfersAndOperatorsReachIt) {
  Allocator allocator(kCuda);
  Workspace workspace(allocator);
  OpContext ctx{kCuda, Stream::none(), workspace};
  const OwnedTensor x(allocator, "test", DType::kFloat32, {3});
  const OwnedTensor y(allocator, "test", DType::kFloat32, {3});
  copy_from_host<float>(x, std::vector<float>{1, 2, 3});
  copy_tensor(y, x);
  ops::add_into(y, x, ctx);
  EXPECT_EQ(to_host<float>(y), (std::vector<float>{2, 4, 6}));
  fill_zero(y);
  EXPECT_EQ(to_host<float>(y), std::vector<float>(3, 0.0f));
}

TEST(FakeCuda, HostCopiesAndDraftsAreTransfers) {
  Allocator allocator(kCuda);
  const OwnedTensor x(allocator, "test", DType::kInt32, {2});
  HostDraft draft(x);
  draft.view().data<int32_t>()[0] = 5;
  draft.view().data<int32_t>()[1] = 6;
  EXPECT_EQ(to_host<int32_t>(x), (std::vector<int32_t>{0, 0}));
  draft.commit();
  EXPECT_EQ(HostCopy(x).view().data<int32_t>()[1], 6);
  EXPECT_EQ(to_host<int32_t>(x), (std::vector<int32_t>{5, 6}));
}

// As late as they may: what does not wait for a stream sees nothing of its work.
TEST(FakeCuda, StreamsWorkWhenSomebodyWaits) {
  Allocator allocator(kCuda);
  Workspace workspace(allocator);
  const DeviceStream stream(kCuda), other(kCuda);
  OpContext late{kCuda, stream.get(), workspace};
  const OwnedTensor x(allocator, "test", DType::kFloat32, {1});
  const OwnedTensor y(allocator, "test", DType::kFloat32, {1});
  copy_from_host<float>(x, std::vector<float>{1});
  DeviceEvent first(kCuda), second(kCuda), of_other(kCuda);
  ops::add_into(y, x, late);
  first.record(stream.get());
  ops::add_into(y, x, late);
  second.record(stream.get());
  EXPECT_EQ(to_host<float>(y), std::vector<float>{0});
  first.hold_back(Stream::none());
  EXPECT_EQ(to_host<float>(y), std::vector<float>{1});
  second.hold_back(other.get());
  of_other.record(other.get());
  EXPECT_EQ(to_host<float>(y), std::vector<float>{1});
  of_other.hold_back(Stream::none());
  EXPECT_EQ(to_host<float>(y), std::vector<float>{2});
  copy_tensor(y, x, stream.get());
  EXPECT_EQ(to_host<float>(y), std::vector<float>{2});
  EXPECT_EQ(to_host<float>(y, stream.get()), std::vector<float>{1});
}

}  // namespace
}  // namespace grpo::testing
