#include "model/files/checksum.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "model/core/errors.h"

namespace grpo::model {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5u;

template <typename Word>
Word word_at(const std::byte* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof(Word));
  return word;
}

uint64_t mixed(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

uint64_t with_rest(uint64_t hash, std::span<const std::byte> rest) {
  while (rest.size() >= 8) {
    hash = std::rotl(hash ^ mixed(0, word_at<uint64_t>(rest.data())), 27) * kPrime1 + kPrime4;
    rest = rest.subspan(8);
  }
  if (rest.size() >= 4) {
    hash = std::rotl(hash ^ word_at<uint32_t>(rest.data()) * kPrime1, 23) * kPrime2 + kPrime3;
    rest = rest.subspan(4);
  }
  for (const std::byte byte : rest) {
    hash = std::rotl(hash ^ static_cast<uint64_t>(byte) * kPrime5, 11) * kPrime1;
  }
  return hash;
}

// Owns a descriptor that is open for reading.
class InputFile {
 public:
  // O_NONBLOCK: opening a named pipe must not hang; regular files ignore it.
  explicit InputFile(const std::filesystem::path& path)
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0) fail();
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() { ::close(descriptor_); }

  // Less than asked for only at the end.
  size_t read(std::span<std::byte> bytes) const {
    for (;;) {
      const ssize_t count = ::read(descriptor_, bytes.data(), bytes.size());
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR) fail();
    }
  }

 private:
  [[noreturn]] void fail() const {
    throw DataError(fmt::format("{}: cannot be read: {}", path_.string(), std::strerror(errno)));
  }

  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace

void Checksum64::add_stripe(const std::byte* stripe) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i] = mixed(lanes_[i], word_at<uint64_t>(stripe + 8 * i));
  }
}

void Checksum64::add(std::span<const std::byte> bytes) {
  const size_t num_waiting = num_bytes_ % kStripeBytes;
  num_bytes_ += bytes.size();
  if (num_waiting != 0) {
    const size_t count = std::min(bytes.size(), kStripeBytes - num_waiting);
    std::copy_n(bytes.begin(), count, rest_.begin() + static_cast<std::ptrdiff_t>(num_waiting));
    bytes = bytes.subspan(count);
    if (num_waiting + count < kStripeBytes) return;
    add_stripe(rest_.data());
  }
  for (; bytes.size() >= kStripeBytes; bytes = bytes.subspan(kStripeBytes)) {
    add_stripe(bytes.data());
  }
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
}

uint64_t Checksum64::value() const {
  uint64_t hash = kPrime5;
  if (num_bytes_ >= kStripeBytes) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = (hash ^ mixed(0, lane)) * kPrime1 + kPrime4;
  }
  hash = with_rest(hash + num_bytes_, std::span(rest_).first(num_bytes_ % kStripeBytes));
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::string checksum_text(uint64_t value) { return fmt::format("{:016x}", value); }

Checksum64 checksum_of_file(const std::filesystem::path& path) {
  const InputFile file(path);
  Checksum64 checksum;
  std::vector<std::byte> chunk(size_t{1} << 20);
  while (const size_t count = file.read(chunk)) checksum.add(std::span(chunk).first(count));
  return checksum;
}

}  // namespace grpo::model
