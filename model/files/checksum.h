// Checksum64: XXH64 with seed 0 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md), which
// `xxhsum -H64` prints for a file. It finds damage, not forgery.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace grpo::model {

// Bytes in order, in pieces of any size. One thread.
class Checksum64 {
 public:
  void add(std::span<const std::byte> bytes);
  uint64_t value() const;  // of all bytes so far
  uint64_t num_bytes() const { return num_bytes_; }

 private:
  static constexpr size_t kStripeBytes = 32;

  void add_stripe(const std::byte* stripe);

  std::array<uint64_t, 4> lanes_ = {0x60EA27EEADC0B5D6u, 0xC2B2AE3D27D4EB4Fu, 0u,
                                    0x61C8864E7A143579u};  // P1 + P2, P2, 0, -P1
  std::array<std::byte, kStripeBytes> rest_ = {};
  uint64_t num_bytes_ = 0;
};

// 16 hexadecimal digits.
std::string checksum_text(uint64_t value);

// Of a file's bytes. Throws DataError (path, the system's reason) for a file that cannot be read.
Checksum64 checksum_of_file(const std::filesystem::path& path);

}  // namespace grpo::model
