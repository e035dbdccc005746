#include "model/files/checksum.h"

#include <fcntl.h>
#include <unistd.h>

#define XXH_INLINE_ALL  // no shared library to carry
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "model/core/errors.h"
#include "model/core/file_descriptor.h"

namespace grpo::model {

namespace {

[[noreturn]] void fail_reading(const std::filesystem::path& path) {
  throw DataError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
}

}  // namespace

struct Checksum64::State {
  State() { XXH64_reset(&xxh64, 0); }

  XXH64_state_t xxh64;
  uint64_t num_bytes = 0;
};

Checksum64::Checksum64() : state_(std::make_unique<State>()) {}

Checksum64::~Checksum64() = default;

Checksum64::Checksum64(Checksum64&& other) noexcept = default;

void Checksum64::add(std::span<const std::byte> bytes) {
  XXH64_update(&state_->xxh64, bytes.data(), bytes.size());
  state_->num_bytes += bytes.size();
}

uint64_t Checksum64::value() const { return XXH64_digest(&state_->xxh64); }

uint64_t Checksum64::num_bytes() const { return state_->num_bytes; }

std::string checksum_text(uint64_t value) { return fmt::format("{:016x}", value); }

Checksum64 checksum_of_file(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe must not hang; regular files ignore it.
  const FileDescriptor file = FileDescriptor::open(path, O_RDONLY | O_NONBLOCK);
  if (!file.is_open()) fail_reading(path);
  Checksum64 checksum;
  std::vector<std::byte> chunk(size_t{1} << 20);
  for (;;) {
    const ssize_t count = ::read(file.get(), chunk.data(), chunk.size());
    if (count == 0) return checksum;
    if (count > 0) checksum.add(std::span(chunk).first(static_cast<size_t>(count)));
    if (count < 0 && errno != EINTR) fail_reading(path);
  }
}

}  // namespace grpo::model
