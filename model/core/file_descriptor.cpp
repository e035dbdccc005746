#include "model/core/file_descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace grpo {

namespace {

constexpr mode_t kReadWriteForAll = 0666;  // less the process's umask

}  // namespace

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

// errno stays: an error is often reported after the descriptor went out of scope.
FileDescriptor::~FileDescriptor() {
  const int error = errno;
  close();
  errno = error;
}

FileDescriptor FileDescriptor::open(const std::filesystem::path& path, int flags) {
  return FileDescriptor(::open(path.c_str(), flags | O_CLOEXEC, kReadWriteForAll));
}

bool FileDescriptor::close() noexcept {
  return !is_open() || ::close(std::exchange(descriptor_, -1)) == 0;
}

}  // namespace grpo
