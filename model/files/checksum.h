// Checksum64: XXH64 with seed 0 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md), which
// `xxhsum -H64` prints for a file. It finds damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace grpo::model {

// Bytes in order, in pieces of any size. One thread. A moved-from checksum is only destroyed.
class Checksum64 {
 public:
  Checksum64();
  ~Checksum64();
  Checksum64(Checksum64&& other) noexcept;

  void add(std::span<const std::byte> bytes);
  uint64_t value() const;  // of all bytes so far
  uint64_t num_bytes() const;

 private:
  struct State;

  std::unique_ptr<State> state_;
};

// 16 hexadecimal digits.
std::string checksum_text(uint64_t value);

// Of a file's bytes. Throws DataError (path, the system's reason) for a file that cannot be read.
Checksum64 checksum_of_file(const std::filesystem::path& path);

}  // namespace grpo::model
