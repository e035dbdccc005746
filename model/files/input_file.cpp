#include "model/files/input_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "model/core/errors.h"

namespace grpo::model {

namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

bool is_present(const std::filesystem::path& path) noexcept {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

bool is_folder(const std::filesystem::path& path) noexcept {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::optional<std::string> input_problem(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::strerror(errno);
  if (S_ISREG(status.st_mode)) return std::nullopt;
  return fmt::format("is {}; allowed: a regular file", kind_of(status.st_mode));
}

std::ifstream open_input(const std::filesystem::path& path) {
  if (const auto problem = input_problem(path)) {
    throw DataError(fmt::format("{}: {}", path.string(), *problem));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw DataError(fmt::format("{}: {}", path.string(),
                                errno != 0 ? std::strerror(errno) : "cannot be opened"));
  }
  return file;
}

}  // namespace grpo::model
