// The folder of a checkpoint: its manifest, which names every file with size and checksum and whose
// rename commits; the marker of a save that is under way; and what a folder of checkpoints holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace grpo::parallel {

struct CheckpointFile {
  std::string name;  // in the checkpoint's folder
  int64_t num_bytes;
  uint64_t checksum;  // XXH64
};

struct CheckpointManifest {
  int64_t step;
  std::string state_json;  // the caller's object
  // Called on world rank 0 before the manifest commits, for small files of the caller's; may be
  // empty.
  std::function<void(const std::filesystem::path& folder)> add_files = {};
  std::vector<CheckpointFile> files = {};  // of read_manifest()
};

// Makes the folder, empty but for the marker of an unfinished save. What an earlier save of this
// step left goes away first; anything else in the way is a DataError.
void begin_checkpoint(const std::filesystem::path& folder);
// Writes the manifest with `files` and those that already lie in the folder beside them; from then
// on the checkpoint counts. Throws DataError when the disk refuses.
void commit_checkpoint(const std::filesystem::path& folder, const CheckpointManifest& manifest,
                       std::vector<CheckpointFile> files);
// A removal that breaks off leaves what counts as unfinished, or an empty folder.
void remove_checkpoint(const std::filesystem::path& folder);

// Throws DataError (file, key) for a manifest that is missing, malformed or damaged.
CheckpointManifest read_manifest(const std::filesystem::path& folder);

// The first file that is missing, has another size or other bytes than the manifest says ("path:
// what was found, what was expected"); nullopt when there is none. Looks at every `num_parts`-th
// file from number `part` on, so that ranks can share the work.
std::optional<std::string> find_damage(const std::filesystem::path& folder,
                                       const CheckpointManifest& manifest, int part = 0,
                                       int num_parts = 1);

// N of a folder named step_N; nullopt for other names.
std::optional<int64_t> step_of_folder(const std::filesystem::path& folder);
// Folders step_N of `parent` with a manifest, ascending in N; unfinished ones are left out.
std::vector<std::filesystem::path> finished_checkpoints(const std::filesystem::path& parent);
// Removes the remains of saves and removals that broke off; no other process may be saving there.
void remove_unfinished_checkpoints(const std::filesystem::path& parent);

}  // namespace grpo::parallel
