#include "app/text/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "model/core/errors.h"
#include "model/files/atomic_file.h"

namespace grpo::app {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  const int error = errno;
  throw DataError(fmt::format("{}: cannot be {}: {}", path.string(), what, std::strerror(error)));
}

}  // namespace

LineFile::LineFile(std::filesystem::path path)
    : path_(std::move(path)), file_(FileDescriptor::open(path_, O_WRONLY | O_CREAT | O_APPEND)) {
  if (!file_.is_open()) fail(path_, "opened");
  num_bytes_ = ::lseek(file_.get(), 0, SEEK_END);
}

void LineFile::write_line(const std::string& line) {
  const std::string text = line + "\n";
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(file_.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      // Nothing more can be done where even this fails; a resumed run drops half a last line.
      [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), num_bytes_);
      errno = error;
      fail(path_, "written");
    }
    written += static_cast<size_t>(count);
  }
  num_bytes_ += static_cast<int64_t>(text.size());
}

void LineFile::sync() const {
  // EINVAL: a file that cannot be synced, as a pipe.
  if (::fsync(file_.get()) != 0 && errno != EINVAL) fail(path_, "written");
}

void write_standard_output(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) fail("standard output", "written");
}

void refuse_output_over_input(const std::filesystem::path& input,
                              const std::filesystem::path& output) {
  std::error_code ignored;  // a file that is not there is no other one
  if (!std::filesystem::equivalent(input, output, ignored)) return;
  throw ConfigError(
      fmt::format("--output {} is the file of --input; allowed: another one", output.string()));
}

void write_whole_file(const std::filesystem::path& link, const std::string& text) {
  // A link's target is replaced, not the link; a device or pipe must not become a file.
  std::error_code ignored;
  const bool is_link = std::filesystem::is_symlink(link, ignored);
  const std::filesystem::path path = is_link ? std::filesystem::weakly_canonical(link) : link;
  const auto kind = std::filesystem::status(path, ignored).type();
  if (kind != std::filesystem::file_type::not_found &&
      kind != std::filesystem::file_type::regular) {
    throw DataError(fmt::format("{}: cannot be replaced: not a regular file", link.string()));
  }
  model::write_file_atomically(path, text);
}

}  // namespace grpo::app
