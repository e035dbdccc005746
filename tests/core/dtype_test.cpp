#include "model/core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace grpo {
namespace {

float rounded(float value) { return static_cast<float>(Bfloat16(value)); }

TEST(Bfloat16Test, KeepsWhatItCanHold) {
  for (const float value : {0.0f, 1.0f, -2.5f, 0.15625f, -256.0f, 0x1.fep127f}) {
    EXPECT_EQ(rounded(value), value);
  }
  EXPECT_TRUE(std::signbit(rounded(-0.0f)));
}

TEST(Bfloat16Test, RoundsToNearestAndTiesToEven) {
  // Spacing at 1 is 2^-7.
  EXPECT_EQ(rounded(1.0f + 0x1p-8f), 1.0f);                            // tie, 1 is even
  EXPECT_EQ(rounded(1.0f + 0x1p-7f + 0x1p-8f), 1.0f + 0x1p-6f);        // tie, up to even
  EXPECT_EQ(rounded(1.0f + 0x1p-8f + 0x1p-20f), 1.0f + 0x1p-7f);       // above the tie
  EXPECT_EQ(rounded(1.0f + 0x1p-8f - 0x1p-20f), 1.0f);                 // below the tie
  EXPECT_EQ(rounded(-(1.0f + 0x1p-7f + 0x1p-8f)), -(1.0f + 0x1p-6f));  // sign does not matter
  EXPECT_EQ(rounded(2.0f - 0x1p-9f), 2.0f);                            // carries into the exponent
}

TEST(Bfloat16Test, InfinityOverflowAndSubnormals) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rounded(infinity), infinity);
  EXPECT_EQ(rounded(-infinity), -infinity);
  EXPECT_EQ(rounded(std::numeric_limits<float>::max()), infinity);
  EXPECT_EQ(rounded(0x1p-133f), 0x1p-133f);  // the smallest subnormal it holds
  EXPECT_EQ(rounded(0x1p-134f), 0.0f);       // tie with 0
}

TEST(Bfloat16Test, NanStaysNan) {
  EXPECT_TRUE(std::isnan(rounded(std::numeric_limits<float>::quiet_NaN())));
  // Payloads only in the bits that are cut off, or all bits set, must not become infinity or wrap
  // to zero.
  for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(rounded(std::bit_cast<float>(bits)))) << std::hex << bits;
  }
}

TEST(Bfloat16Test, EveryValueSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    Bfloat16 value;
    value.bits = static_cast<uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    if (std::isnan(wide)) continue;
    ASSERT_EQ(Bfloat16(wide).bits, bits);
  }
}

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(dtype_size_bytes(DType::kFloat32), sizeof(float));
  EXPECT_EQ(dtype_size_bytes(DType::kBfloat16), sizeof(Bfloat16));
  EXPECT_EQ(dtype_size_bytes(DType::kInt32), sizeof(int32_t));
  EXPECT_EQ(dtype_size_bytes(DType::kInt64), sizeof(int64_t));
  EXPECT_EQ(dtype_size_bytes(DType::kUint8), sizeof(uint8_t));
  EXPECT_EQ(dtype_name(DType::kFloat32), "float32");
  EXPECT_EQ(dtype_name(DType::kBfloat16), "bfloat16");
}

}  // namespace
}  // namespace grpo
