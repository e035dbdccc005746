// FileDescriptor: owns a file, folder or socket of the system.
#pragma once

#include <filesystem>

namespace grpo {

// Move-only; closes what it holds, whose last error nobody sees then. One thread.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  // As open(2), closed on exec. Where it fails, is_open() is false and errno has the reason.
  static FileDescriptor open(const std::filesystem::path& path, int flags);

  bool is_open() const noexcept { return descriptor_ >= 0; }
  int get() const noexcept { return descriptor_; }
  // False with errno set when the system reports an error; nothing is held afterwards either way.
  bool close() noexcept;

 private:
  int descriptor_ = -1;
};

}  // namespace grpo
