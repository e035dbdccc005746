// Files of a run, written so that a full disk or a dead rank is noticed and leaves whole lines
// behind.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace grpo::app {

// Appends lines; each is handed to the kernel before write_line returns. One thread. Throws
// DataError naming the file when it cannot be opened or written (a full disk).
class LineFile {
 public:
  explicit LineFile(std::filesystem::path path);

  void write_line(const std::string& line);
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// The whole of a command's output. Throws DataError when it cannot be written (a full disk, a closed
// pipe).
void write_standard_output(const std::string& text);

// Writes the file anew, or the one that a symbolic link names: readers see the old content or the
// whole new one. Throws DataError naming the file; devices, pipes and folders are refused.
void write_whole_file(const std::filesystem::path& link, const std::string& text);

}  // namespace grpo::app
