#include "app/text_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "model/core/errors.h"

namespace grpo::app {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  const int error = errno;
  throw DataError(fmt::format("{}: cannot be {}: {}", path.string(), what, std::strerror(error)));
}

}  // namespace

LineFile::LineFile(std::filesystem::path path) : path_(std::move(path)) {
  file_.reset(std::fopen(path_.c_str(), "ae"));
  if (file_ == nullptr) fail(path_, "opened");
}

void LineFile::write_line(const std::string& line) {
  const std::string text = line + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size();
  if (!written || std::fflush(file_.get()) != 0) fail(path_, "written");
}

void write_standard_output(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) fail("standard output", "written");
}

void write_whole_file(const std::filesystem::path& link, const std::string& text) {
  // A link's target is replaced, not the link; a device or pipe must not become a file.
  std::error_code ignored;
  const bool is_link = std::filesystem::is_symlink(link, ignored);
  const std::filesystem::path path = is_link ? std::filesystem::weakly_canonical(link) : link;
  const auto kind = std::filesystem::status(path, ignored).type();
  if (kind != std::filesystem::file_type::not_found && kind != std::filesystem::file_type::regular) {
    throw DataError(fmt::format("{}: cannot be replaced: not a regular file", link.string()));
  }
  const std::filesystem::path draft = path.string() + ".tmp";
  std::FILE* file = std::fopen(draft.c_str(), "we");
  if (file == nullptr) fail(draft, "opened");
  // fsync reports what a network file system or a quota has refused, before the rename makes it the
  // truth.
  bool good = std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
              std::fflush(file) == 0 && fsync(fileno(file)) == 0;
  int error = errno;
  if (std::fclose(file) != 0 && good) {
    good = false;
    error = errno;
  }
  if (!good) {
    unlink(draft.c_str());
    errno = error;
    fail(draft, "written");
  }
  if (std::rename(draft.c_str(), path.c_str()) != 0) {
    error = errno;
    unlink(draft.c_str());
    errno = error;
    fail(path, "replaced");
  }
}

}  // namespace grpo::app
