#include "model/core/host_transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace grpo {
namespace {

TEST(HostTransfer, ValuesGoInAndOut) {
  Allocator allocator(Device::cpu());
  const OwnedTensor tensor(allocator, "test", DType::kFloat32, {2, 3});
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  copy_from_host<float>(tensor, values);
  EXPECT_EQ(to_host<float>(tensor), values);
  EXPECT_EQ(to_host<float>(tensor.view().rows(1, 1)), (std::vector<float>{4, 5, 6}));
}

TEST(HostTransfer, OtherCountsAndTypesAreRefused) {
  Allocator allocator(Device::cpu());
  const OwnedTensor tensor(allocator, "test", DType::kFloat32, {3});
  EXPECT_THROW(copy_from_host<float>(tensor, std::vector<float>(2)), InternalError);
  EXPECT_THROW(to_host<int32_t>(tensor), InternalError);
}

TEST(HostTransfer, CpuTensorsAreReadAndWrittenInPlace) {
  Allocator allocator(Device::cpu());
  const OwnedTensor tensor(allocator, "test", DType::kFloat32, {3});
  EXPECT_EQ(HostCopy(tensor).view().raw(), tensor.view().raw());
  HostDraft draft(tensor);
  EXPECT_EQ(draft.view().raw(), tensor.view().raw());
  draft.commit();
}

TEST(HostTransfer, ArraysShareOneTransferAtAlignedPlaces) {
  Allocator allocator(Device::cpu());
  HostInt32Arrays arrays;
  const std::span<int32_t> first = arrays.add({3});
  const std::span<int32_t> none = arrays.add({0});
  const std::span<int32_t> second = arrays.add({17, 2});
  std::iota(first.begin(), first.end(), 5);
  std::iota(second.begin(), second.end(), 100);
  EXPECT_TRUE(none.empty());
  const OwnedTensor flat(allocator, "test", DType::kInt32, {arrays.num_elements()});
  const std::vector<Tensor> tensors = arrays.upload(flat);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(to_host<int32_t>(tensors[0]), (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(tensors[1].shape(), Shape({0}));
  EXPECT_EQ(tensors[2].shape(), Shape({17, 2}));
  EXPECT_EQ(to_host<int32_t>(tensors[2]), std::vector<int32_t>(second.begin(), second.end()));
  for (const Tensor& tensor : tensors) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 64, 0u);
  }
}

}  // namespace
}  // namespace grpo
