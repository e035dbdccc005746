#include "app/output/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "model/core/errors.h"

namespace grpo::app {

namespace {

constexpr const char* kLockFile = ".lock";

[[noreturn]] void fail(const std::string& key, const std::filesystem::path& folder,
                       const char* what, int error) {
  throw DataError(fmt::format("{} {}: {}: {}", key, folder.string(), what, std::strerror(error)));
}

void make_folder(const std::string& key, const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(key, folder, "cannot be made", error.value());
}

std::string this_process() {
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  return fmt::format("process {} on {}", ::getpid(), host);
}

// Who wrote into the lock's file; "another process" when nobody did.
std::string holder(int descriptor) {
  char text[400] = "";
  const ssize_t count = ::pread(descriptor, text, sizeof(text) - 1, 0);
  const std::string line = count > 0 ? std::string(text, static_cast<size_t>(count)) : "";
  const std::string first = line.substr(0, line.find('\n'));
  return first.empty() ? "another process" : first;
}

bool write_all(int descriptor, const std::string& text) {
  return ::ftruncate(descriptor, 0) == 0 &&
         ::pwrite(descriptor, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

}  // namespace

RunLock::RunLock(const std::string& key, const std::filesystem::path& folder) {
  make_folder(key, folder);
  const std::filesystem::path path = folder / kLockFile;
  file_ = FileDescriptor::open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
  if (!file_.is_open()) fail(key, folder, "cannot be written", errno);
  is_held_ = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0;
  const int error = errno;
  if (!is_held_ && error == EWOULDBLOCK) {
    throw ConfigError(fmt::format(
        "{} {} is in use by another run ({}); allowed: another folder, or this one when that "
        "run has ended",
        key, folder.string(), holder(file_.get())));
  }
  if (!write_all(file_.get(), this_process() + "\n")) {
    fail(key, folder, "cannot be written", errno);
  }
}

void check_writable(const std::string& key, const std::filesystem::path& folder) {
  make_folder(key, folder);
  const std::filesystem::path path = folder / fmt::format(".probe-{}", ::getpid());
  const FileDescriptor file = FileDescriptor::open(path, O_WRONLY | O_CREAT | O_EXCL);
  if (!file.is_open()) fail(key, folder, "cannot be written", errno);
  const bool is_written = write_all(file.get(), this_process()) && ::fsync(file.get()) == 0;
  const int error = errno;
  ::unlink(path.c_str());
  if (!is_written) fail(key, folder, "cannot be written", error);
}

}  // namespace grpo::app
