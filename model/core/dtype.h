// Element types of tensors and the bf16 storage type.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace grpo {

enum class DType : uint8_t { kFloat32, kBfloat16, kInt32, kInt64, kUint8 };

constexpr size_t dtype_size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBfloat16:
      return 2;
    case DType::kInt64:
      return 8;
    case DType::kUint8:
      return 1;
  }
  return 0;
}

// "float32", "bfloat16", ...: the names configs and error messages use.
std::string_view dtype_name(DType dtype);

// Storage only: arithmetic happens in float. Conversion rounds to nearest even and keeps NaN a NaN.
struct Bfloat16 {
  uint16_t bits = 0;

  Bfloat16() = default;
  explicit Bfloat16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? static_cast<uint16_t>((u >> 16) | 0x40u)
                  : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<Bfloat16> {
  static constexpr DType value = DType::kBfloat16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kUint8;
};

}  // namespace grpo
