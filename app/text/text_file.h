// Files of a run, written so that a full disk or a dead rank is noticed and leaves whole lines
// behind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "model/core/file_descriptor.h"

namespace grpo::app {

// Appends lines; each is handed to the kernel before write_line returns. One thread. Throws
// DataError naming the file when it cannot be opened or written (a full disk); no part of the line
// stays then.
class LineFile {
 public:
  explicit LineFile(std::filesystem::path path);

  void write_line(const std::string& line);
  // The lines so far survive a loss of power.
  void sync() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  int64_t num_bytes_ = 0;  // whole lines
};

// The whole of a command's output. Throws DataError when it cannot be written (a full disk, a
// closed pipe).
void write_standard_output(const std::string& text);

// Throws ConfigError when both name one file that exists, through whatever links.
void refuse_output_over_input(const std::filesystem::path& input,
                              const std::filesystem::path& output);

// Writes the file anew, or the one that a symbolic link names: readers see the old content or the
// whole new one. Throws DataError naming the file; devices, pipes and folders are refused.
void write_whole_file(const std::filesystem::path& link, const std::string& text);

}  // namespace grpo::app
