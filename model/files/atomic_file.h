// A file that appears under its name complete or not at all, also when the power fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "model/core/file_descriptor.h"

namespace grpo::model {

// Writes to a temporary name in the same folder; commit() syncs the file, renames it and syncs the
// folder. Destroyed without commit(), nothing stays behind. One thread at a time. Every member
// throws DataError (path and the system's reason) when the disk refuses.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(const char* action);
  void discard() noexcept;

  std::filesystem::path path_;
  std::string temporary_name_;
  FileDescriptor file_;
};

// Makes what was created, renamed or removed in the folder last. Throws DataError as above.
void sync_folder(const std::filesystem::path& folder);

// The whole text of a small file, replaced atomically. Throws DataError as above.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace grpo::model
