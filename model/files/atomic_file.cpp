#include "model/files/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "model/core/errors.h"

namespace grpo::model {
namespace {

// Distinguishes the temporary names of ranks that run as threads of one process.
std::atomic<uint64_t> next_temporary_number{0};

}  // namespace

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor opened = FileDescriptor::open(folder, O_RDONLY | O_DIRECTORY);
  if (!opened.is_open()) {
    throw DataError(
        fmt::format("{}: cannot open the folder: {}", folder.string(), std::strerror(errno)));
  }
  // Some file systems cannot sync folders and say EINVAL: there the rename is all there is.
  if (::fsync(opened.get()) != 0 && errno != EINVAL) {
    throw DataError(
        fmt::format("{}: cannot sync the folder: {}", folder.string(), std::strerror(errno)));
  }
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
  do {
    temporary_name_ = fmt::format("{}.partial-{}-{}", path.string(), ::getpid(),
                                  next_temporary_number.fetch_add(1));
    file_ = FileDescriptor::open(temporary_name_, O_WRONLY | O_CREAT | O_EXCL);
  } while (!file_.is_open() && errno == EEXIST);  // left by a process that was killed
  if (!file_.is_open()) {
    throw DataError(
        fmt::format("{}: cannot create the file: {}", path.string(), std::strerror(errno)));
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  file_.close();
  if (!temporary_name_.empty()) {
    ::unlink(temporary_name_.c_str());
    temporary_name_.clear();
  }
}

void AtomicFile::fail(const char* action) {
  const int error = errno;
  discard();
  throw DataError(fmt::format("{}: cannot {}: {}", path_.string(), action, std::strerror(error)));
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  CHECK(file_.is_open(), "{} is already closed", path_.string());
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write");
    offset += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void AtomicFile::commit() {
  CHECK(file_.is_open(), "{} is already closed", path_.string());
  if (::fsync(file_.get()) != 0) fail("sync");
  // Network file systems may report a full disk only here.
  if (!file_.close()) fail("close");
  if (std::rename(temporary_name_.c_str(), path_.c_str()) != 0) fail("rename into place");
  temporary_name_.clear();
  sync_folder(path_.has_parent_path() ? path_.parent_path() : ".");
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace grpo::model
