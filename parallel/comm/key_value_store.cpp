#include "parallel/comm/key_value_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "model/core/errors.h"
#include "model/core/file_descriptor.h"

namespace grpo::parallel {
namespace {

class MemoryStore final : public KeyValueStore {
 public:
  bool set_if_absent(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    return values_.emplace(key, value).second;
  }

  std::optional<std::string> get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

bool write_all(const FileDescriptor& file, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(file.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    written += static_cast<size_t>(count);
  }
  return true;
}

std::string read_all(const FileDescriptor& file) {
  std::string text;
  char chunk[4096];
  for (;;) {
    const ssize_t count = ::read(file.get(), chunk, sizeof(chunk));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(chunk, static_cast<size_t>(count));
  }
}

class FileStore final : public KeyValueStore {
 public:
  explicit FileStore(const std::filesystem::path& folder) : folder_(folder) {
    std::error_code error;
    // A folder that is already there is fine. Another run that ends may remove the shared parent,
    // once it is empty, between the making of the parent and of the folder itself.
    for (int attempt = 0; attempt < 1000; ++attempt) {
      std::filesystem::create_directories(folder_, error);
      if (error != std::errc::no_such_file_or_directory) break;
    }
    if (!std::filesystem::is_directory(folder_)) {
      throw ConfigError(fmt::format("rendezvous folder {}: cannot be made: {}", folder_.string(),
                                    error ? error.message() : "a file is in the way"));
    }
    if (::access(folder_.c_str(), R_OK | W_OK | X_OK) != 0) {
      throw ConfigError(fmt::format("rendezvous folder {}: not writable: {}", folder_.string(),
                                    std::strerror(errno)));
    }
  }

  bool set_if_absent(const std::string& key, const std::string& value) override {
    const auto temporary = unique_temporary();
    {
      const FileDescriptor file = FileDescriptor::open(temporary, O_WRONLY | O_CREAT | O_EXCL);
      if (!file.is_open() || !write_all(file, value)) fail("write", temporary);
    }
    const bool linked = ::link(temporary.c_str(), path_of(key).c_str()) == 0;
    const int link_error = errno;
    // A network file system may report an error for a link it made: the link count tells.
    struct stat status {};
    const bool is_winner =
        linked || (::stat(temporary.c_str(), &status) == 0 && status.st_nlink == 2);
    ::unlink(temporary.c_str());
    if (!is_winner && link_error != EEXIST) {
      errno = link_error;
      fail("link", path_of(key));
    }
    return is_winner;
  }

  std::optional<std::string> get(const std::string& key) override {
    const auto path = path_of(key);
    // Opening the folder makes a network file system ask its server again, so that a "no such file"
    // remembered from an earlier look does not last.
    const FileDescriptor folder = FileDescriptor::open(folder_, O_RDONLY | O_DIRECTORY);
    const FileDescriptor file = FileDescriptor::open(path, O_RDONLY);
    if (file.is_open()) return read_all(file);
    if (errno == ENOENT || errno == ESTALE) return std::nullopt;
    fail("read", path);
  }

 private:
  std::filesystem::path path_of(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '~');
    return folder_ / key;
  }

  std::filesystem::path unique_temporary() const {
    static std::atomic<uint64_t> counter{0};
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    return folder_ / fmt::format(".new-{}-{}-{}", host, ::getpid(), counter.fetch_add(1));
  }

  [[noreturn]] void fail(const char* action, const std::filesystem::path& path) const {
    throw ConfigError(fmt::format("rendezvous folder {}: cannot {} {}: {}", folder_.string(),
                                  action, path.filename().string(), std::strerror(errno)));
  }

  std::filesystem::path folder_;
};

}  // namespace

std::optional<std::string> KeyValueStore::wait(const std::string& key,
                                               std::chrono::milliseconds timeout) {
  using std::chrono::microseconds;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto pause = microseconds(100);
  for (;;) {
    if (auto value = get(key)) return value;
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return std::nullopt;
    const auto left = std::chrono::duration_cast<microseconds>(deadline - now);
    std::this_thread::sleep_for(std::min(pause, left));
    pause = std::min(pause * 2, microseconds(20'000));
  }
}

std::shared_ptr<KeyValueStore> make_memory_store() { return std::make_shared<MemoryStore>(); }

std::shared_ptr<KeyValueStore> make_file_store(const std::filesystem::path& folder) {
  return std::make_shared<FileStore>(folder);
}

}  // namespace grpo::parallel
