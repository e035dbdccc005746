// RunLock: at most one run writes into a folder.
#pragma once

#include <filesystem>
#include <string>

#include "model/core/file_descriptor.h"

namespace grpo::app {

// Held by world rank 0 for the run's life; the system lets go of it when the process ends, however
// it ends. Its file .lock stays in the folder and says who has it, or had it last.
class RunLock {
 public:
  // Makes the folder if it is missing. `key` is the config key that names it, for messages. Throws
  // ConfigError when another run holds the lock, DataError when the folder cannot be made or
  // written.
  RunLock(const std::string& key, const std::filesystem::path& folder);

  // False on a file system without locks: then nothing tells two runs apart.
  bool is_held() const { return is_held_; }

 private:
  FileDescriptor file_;
  bool is_held_ = false;
};

// Makes the folder if it is missing and writes a file there for a moment. Throws DataError that
// names the key, so that a folder that cannot be used is reported before anything else needs it.
void check_writable(const std::string& key, const std::filesystem::path& folder);

}  // namespace grpo::app
