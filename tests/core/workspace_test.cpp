#include "model/core/workspace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace grpo {
namespace {

class WorkspaceTest : public ::testing::Test {
 protected:
  Allocator allocator_{Device::cpu()};
  Workspace workspace_{allocator_};
};

TEST_F(WorkspaceTest, TakesDoNotOverlapAndAreAligned) {
  const Workspace::Scope scope(workspace_);
  const Tensor a = workspace_.take(DType::kBfloat16, {3});
  const Tensor b = workspace_.take(DType::kFloat32, {5, 2});
  const Tensor none = workspace_.take(DType::kFloat32, {0});
  const Tensor c = workspace_.take(DType::kInt64, {1});
  EXPECT_EQ(none.num_elements(), 0);
  for (const Tensor& tensor : {a, b, c}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 64, 0u);
  }
  std::fill_n(b.data<float>(), 10, 1.0f);
  *c.data<int64_t>() = -1;
  for (int i = 0; i < 3; ++i) a.data<Bfloat16>()[i] = Bfloat16(2.0f);
  EXPECT_EQ(std::count(b.data<float>(), b.data<float>() + 10, 1.0f), 10);
  EXPECT_EQ(*c.data<int64_t>(), -1);
}

TEST_F(WorkspaceTest, ScopesGiveBackInStackOrder) {
  const Workspace::Scope outer(workspace_);
  const Tensor kept = workspace_.take(DType::kFloat32, {100});
  void* inner_data = nullptr;
  {
    const Workspace::Scope inner(workspace_);
    inner_data = workspace_.take(DType::kFloat32, {7}).raw();
  }
  const Tensor reused = workspace_.take(DType::kFloat32, {7});
  EXPECT_EQ(reused.raw(), inner_data);
  EXPECT_NE(reused.raw(), kept.raw());
}

TEST_F(WorkspaceTest, MemoryIsKeptForReuse) {
  constexpr int64_t kLarge = 3 << 20;  // larger than a block
  size_t live_bytes = 0;
  void* first = nullptr;
  for (int round = 0; round < 3; ++round) {
    const Workspace::Scope scope(workspace_);
    const Tensor small = workspace_.take(DType::kFloat32, {10});
    const Tensor large = workspace_.take(DType::kUint8, {kLarge});
    large.data<uint8_t>()[kLarge - 1] = 1;
    if (round == 0) {
      live_bytes = allocator_.live_bytes();
      first = small.raw();
    }
    EXPECT_EQ(small.raw(), first);
    EXPECT_EQ(allocator_.live_bytes(), live_bytes) << "round " << round;
  }
}

TEST_F(WorkspaceTest, PoisonCoversWhatIsHandedOutAndGivenBack) {
  allocator_.set_poison_scratch(true);
  constexpr int64_t kCount = 1 << 19;  // twice this spills into a second block
  Tensor stale;
  Tensor stale_in_next_block;
  const Workspace::Scope outer(workspace_);
  const Tensor kept = workspace_.take(DType::kFloat32, {4});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(kept.data<float>()[i]));
  std::fill_n(kept.data<float>(), 4, 5.0f);
  {
    const Workspace::Scope inner(workspace_);
    stale = workspace_.take(DType::kFloat32, {16});
    stale_in_next_block = workspace_.take(DType::kFloat32, {kCount});
    EXPECT_TRUE(std::isnan(stale_in_next_block.data<float>()[kCount - 1]));
    std::fill_n(stale.data<float>(), 16, 1.0f);
    std::fill_n(stale_in_next_block.data<float>(), kCount, 1.0f);
  }
  EXPECT_TRUE(std::isnan(stale.data<float>()[15]));
  EXPECT_TRUE(std::isnan(stale_in_next_block.data<float>()[kCount - 1]));
  EXPECT_EQ(std::count(kept.data<float>(), kept.data<float>() + 4, 5.0f), 4);
}

TEST(WorkspaceReserveTest, HoldsWhatFitsAndMoreComesOnTop) {
  Allocator allocator(Device::cpu());
  Workspace workspace(allocator);
  workspace.reserve(3 * 64);
  EXPECT_EQ(allocator.live_bytes(), 3u * 64);
  {
    const Workspace::Scope scope(workspace);
    workspace.take(DType::kFloat32, {16});
    workspace.take(DType::kFloat32, {1}, ScratchOwner::kLogits);
    const Workspace::OperatorScope running(workspace);
    workspace.take(DType::kFloat32, {2});
    EXPECT_EQ(allocator.live_bytes(), 3u * 64);
  }
  EXPECT_EQ(allocator.peaks().at("setup").workspace.bytes, (std::array<size_t, 3>{64, 64, 64}));
  allocator.set_phase("next");
  workspace.take(DType::kFloat32, {4 * 16});
  EXPECT_GT(allocator.live_bytes(), 3u * 64);
  EXPECT_EQ(allocator.peaks().at("next").workspace.bytes, (std::array<size_t, 3>{256, 0, 0}));
}

}  // namespace
}  // namespace grpo
