#include "model/core/buffer.h"

#include <gtest/gtest.h>

#include <utility>

#include "model/core/errors.h"

namespace grpo {
namespace {

TEST(AllocatorTest, CountsByNameAndFreesWithTheOwner) {
  Allocator allocator(Device::cpu());
  {
    const Buffer a = allocator.allocate("weights", 1000);
    const Buffer b = allocator.allocate("weights", 24);
    const Buffer c = allocator.allocate("kv", 10);
    EXPECT_EQ(allocator.live_bytes(), 1034u);
    EXPECT_EQ(allocator.peaks().at("setup").by_owner,
              (std::map<std::string, size_t>{{"kv", 10}, {"weights", 1024}}));
  }
  EXPECT_EQ(allocator.live_bytes(), 0u);
  allocator.set_phase("afterwards");
  const Buffer alone = allocator.allocate("logits", 5);
  EXPECT_EQ(allocator.peaks().at("afterwards").by_owner,
            (std::map<std::string, size_t>{{"logits", 5}}));
}

TEST(AllocatorTest, PeaksBelongToPhases) {
  Allocator allocator(Device::cpu());
  Buffer kept = allocator.allocate("weights", 100);
  allocator.set_phase("generation");
  { const Buffer scratch = allocator.allocate("scratch", 50); }
  allocator.set_phase("training");
  kept = Buffer();
  const Buffer small = allocator.allocate("scratch", 20);
  const auto peaks = allocator.peak_bytes_by_phase();
  EXPECT_EQ(peaks.at("setup"), 100u);
  EXPECT_EQ(peaks.at("generation"), 150u);
  EXPECT_EQ(peaks.at("training"), 100u);  // what was alive when the phase began
}

TEST(AllocatorTest, APeakKeepsItsOwners) {
  Allocator allocator(Device::cpu());
  const Buffer kept = allocator.allocate("weights", 100);
  { const Buffer scratch = allocator.allocate("scratch", 50); }
  const Buffer later = allocator.allocate("kv", 20);
  const PhasePeak peak = allocator.peaks().at("setup");
  EXPECT_EQ(peak.bytes, 150u);
  EXPECT_EQ(peak.by_owner, (OwnerBytes{{"scratch", 50}, {"weights", 100}}));
}

TEST(AllocatorTest, ARehearsalCountsWhatTheMachineLacks) {
  Allocator allocator(Device::cpu().rehearsal());
  constexpr size_t kHuge = size_t{1} << 39;  // ThreadSanitizer leaves a process little more
  const Buffer buffer = allocator.allocate("weights", kHuge);
  EXPECT_EQ(allocator.live_bytes(), kHuge);
  EXPECT_TRUE(buffer.device().is_rehearsal);
}

TEST(AllocatorTest, LargeMemoryIsZero) {
  Allocator allocator(Device::cpu());
  const Buffer buffer = allocator.allocate("weights", size_t{33} << 20);
  const auto* bytes = static_cast<const unsigned char*>(buffer.data());
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[buffer.size_bytes() - 1], 0);
}

TEST(BufferTest, MovesCarryTheMemory) {
  Allocator allocator(Device::cpu());
  Buffer a = allocator.allocate("a", 64);
  void* const data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.size_bytes(), 64u);
  EXPECT_EQ(allocator.live_bytes(), 64u);
  Buffer c = allocator.allocate("c", 8);
  c = std::move(b);  // frees what c held
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(allocator.live_bytes(), 64u);
  EXPECT_EQ(c.device(), Device::cpu());
  EXPECT_THROW(Buffer().device(), InternalError);
}

TEST(BufferTest, ZeroBytesAreAllowed) {
  Allocator allocator(Device::cpu());
  const Buffer empty = allocator.allocate("empty", 0);
  EXPECT_EQ(empty.size_bytes(), 0u);
  EXPECT_NE(empty.data(), nullptr);
  EXPECT_EQ(allocator.live_bytes(), 0u);
}

}  // namespace
}  // namespace grpo
