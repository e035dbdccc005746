// ResumePoint: the checkpoint that a run with --resume starts from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/core/communicator.h"

namespace grpo::rl {

// Where a run with --resume starts.
struct ResumePoint {
  std::optional<std::filesystem::path> checkpoint;  // none: fresh
  int64_t step = 0;
  std::vector<std::string> warnings;  // damaged checkpoints that were passed over
};
// Collective: every rank gets the same, and all have verified the checkpoint together. "auto"
// passes over damaged checkpoints. Throws DataError when a named one, or every one there is, is
// damaged; ConfigError as find_checkpoint().
ResumePoint find_resume_point(const std::string& resume, const std::filesystem::path& parent,
                              Communicator& world);

}  // namespace grpo::rl
