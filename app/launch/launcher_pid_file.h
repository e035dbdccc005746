// Marks the meeting folders of local runs with the process that started them, so that those of
// launchers that were killed can go.
#pragma once

#include <filesystem>

namespace grpo::app {

// Writes into `folder`, which is there, that this process is its launcher: host, boot, pid
// namespace, pid and start time. Without effect where the system does not tell them.
void mark_launcher(const std::filesystem::path& folder);

// Removes the folders in `parent` whose launcher, a process of this system, has ended. A folder
// without a mark, or with one of another system, stays.
void remove_abandoned_folders(const std::filesystem::path& parent) noexcept;

}  // namespace grpo::app
