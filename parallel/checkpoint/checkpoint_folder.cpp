#include "parallel/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "model/core/errors.h"
#include "model/files/atomic_file.h"
#include "model/files/checksum.h"
#include "model/files/json_text.h"

namespace grpo::parallel {

namespace {

constexpr const char* kManifest = "manifest.json";
constexpr const char* kUnfinished = "unfinished";  // the marker's file
constexpr int64_t kFormat = 2;

std::vector<std::pair<int64_t, std::filesystem::path>> step_folders(
    const std::filesystem::path& parent) {
  std::vector<std::pair<int64_t, std::filesystem::path>> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    if (const auto step = step_of_folder(entry.path())) found.emplace_back(*step, entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Of the manifest without its own checksum, its keys in alphabetical order.
std::string checksum_of(nlohmann::json manifest) {
  manifest.erase("xxh64");
  const std::string text = manifest.dump();
  model::Checksum64 checksum;
  checksum.add(std::as_bytes(std::span(text)));
  return model::checksum_text(checksum.value());
}

CheckpointFile described(const std::filesystem::path& path) {
  const model::Checksum64 checksum = model::checksum_of_file(path);
  return {.name = path.filename().string(),
          .num_bytes = static_cast<int64_t>(checksum.num_bytes()),
          .checksum = checksum.value()};
}

// Adds the folder's other files, which the caller put there.
void add_unlisted(const std::filesystem::path& folder, std::vector<CheckpointFile>& files) {
  std::set<std::string> known{kManifest, kUnfinished};
  for (const CheckpointFile& file : files) known.insert(file.name);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!known.contains(entry.path().filename().string())) files.push_back(described(entry.path()));
  }
  std::sort(files.begin(), files.end(),
            [](const CheckpointFile& a, const CheckpointFile& b) { return a.name < b.name; });
}

class ManifestReader {
 public:
  explicit ManifestReader(const std::filesystem::path& path)
      : path_(path), json_(model::read_json_file(path)) {}

  CheckpointManifest read() const {
    require(
        json_.is_object() && json_.contains("format") && json_["format"] == kFormat,
        fmt::format("\"format\" is not {}: no checkpoint of this version of the program", kFormat));
    require(json_.contains("step") && json_["step"].is_number_integer() && json_["step"] >= 0,
            "\"step\" is not a step number");
    require(json_.contains("state") && json_["state"].is_object(), "\"state\" is not an object");
    require(json_.contains("files") && json_["files"].is_object(), "\"files\" is not an object");
    const std::string found = checksum_of(json_);
    require(json_.contains("xxh64") && json_["xxh64"] == found,
            fmt::format("damaged: its own checksum is {}, expected the {} that it holds", found,
                        json_.contains("xxh64") ? model::shown(json_["xxh64"]) : "missing one"));
    CheckpointManifest manifest{.step = json_["step"].get<int64_t>(),
                                .state_json = json_["state"].dump()};
    for (const auto& [name, file] : json_["files"].items())
      manifest.files.push_back(read_file(name, file));
    return manifest;
  }

 private:
  void require(bool holds, const std::string& problem) const {
    if (!holds) throw DataError(fmt::format("{}: {}", path_.string(), problem));
  }

  CheckpointFile read_file(const std::string& name, const nlohmann::json& json) const {
    const std::string where = fmt::format("\"files\": {}", model::shown_text(name));
    require(!name.empty() && name.find('/') == std::string::npos &&
                name.find('\0') == std::string::npos,
            where + " is not a plain file name");
    require(json.is_object() && json.contains("bytes") && json["bytes"].is_number_integer() &&
                json["bytes"] >= 0,
            where + " has no size");
    require(json.contains("xxh64") && json["xxh64"].is_string(), where + " has no checksum");
    const auto& digits = json["xxh64"].get_ref<const std::string&>();
    uint64_t checksum = 0;
    const char* const end = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), end, checksum, 16);
    require(digits.size() == 16 && parsed.ec == std::errc() && parsed.ptr == end,
            where + " has no checksum");
    return {.name = name, .num_bytes = json["bytes"].get<int64_t>(), .checksum = checksum};
  }

  std::filesystem::path path_;
  nlohmann::json json_;
};

// "path: what is wrong", or nullopt.
std::optional<std::string> damage_of(const std::filesystem::path& path,
                                     const CheckpointFile& expected) {
  std::error_code error;
  const auto num_bytes = std::filesystem::file_size(path, error);
  if (error) return fmt::format("{}: {}", path.string(), error.message());
  if (num_bytes != static_cast<uintmax_t>(expected.num_bytes)) {
    return fmt::format("{}: {} bytes, the manifest says {}", path.string(), num_bytes,
                       expected.num_bytes);
  }
  try {
    const uint64_t found = model::checksum_of_file(path).value();
    if (found == expected.checksum) return std::nullopt;
    return fmt::format("{}: checksum {}, the manifest says {}", path.string(),
                       model::checksum_text(found), model::checksum_text(expected.checksum));
  } catch (const DataError& unreadable) {
    return unreadable.what();
  }
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::error_code& error) {
  throw DataError(fmt::format("{}: {}", path.string(), error.message()));
}

}  // namespace

void begin_checkpoint(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::exists(folder / kUnfinished) ||
      std::filesystem::exists(folder / kManifest)) {
    remove_checkpoint(folder);
  } else if (std::filesystem::exists(folder) && !std::filesystem::is_empty(folder, error)) {
    throw DataError(fmt::format(
        "{}: is in the way and no checkpoint; allowed: another checkpointing.checkpoint_dir",
        folder.string()));
  }
  std::filesystem::create_directories(folder, error);
  if (error) fail(folder, error);
  // Empty, so that it is there at once or not at all.
  const std::filesystem::path marker = folder / kUnfinished;
  std::FILE* const file = std::fopen(marker.c_str(), "we");
  if (file == nullptr) fail(marker, std::error_code(errno, std::generic_category()));
  std::fclose(file);
  model::sync_folder(folder);
  model::sync_folder(folder.parent_path());
}

void commit_checkpoint(const std::filesystem::path& folder, const CheckpointManifest& manifest,
                       std::vector<CheckpointFile> files) {
  add_unlisted(folder, files);
  nlohmann::ordered_json names = nlohmann::ordered_json::object();
  for (const CheckpointFile& file : files) {
    names[file.name] = {{"bytes", file.num_bytes}, {"xxh64", model::checksum_text(file.checksum)}};
  }
  nlohmann::ordered_json json{{"format", kFormat},
                              {"step", manifest.step},
                              {"state", nlohmann::ordered_json::parse(manifest.state_json)},
                              {"files", std::move(names)}};
  json["xxh64"] = checksum_of(nlohmann::json::parse(json.dump()));
  model::write_file_atomically(folder / kManifest, json.dump(1) + "\n");
  std::error_code ignored;
  std::filesystem::remove(folder / kUnfinished, ignored);
}

void remove_checkpoint(const std::filesystem::path& folder) {
  // The manifest becomes the marker, which goes last: a half-removed checkpoint must not look
  // whole, and is recognised.
  std::error_code error;
  if (!std::filesystem::exists(folder / kUnfinished)) {
    std::filesystem::rename(folder / kManifest, folder / kUnfinished, error);
    if (error) fail(folder, error);
  }
  std::filesystem::remove(folder / kManifest, error);
  std::vector<std::filesystem::path> entries;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename() != kUnfinished) entries.push_back(entry.path());
  }
  for (const std::filesystem::path& path : entries) {
    std::filesystem::remove_all(path, error);
    if (error) fail(path, error);
  }
  std::filesystem::remove_all(folder, error);
  if (error) fail(folder, error);
}

CheckpointManifest read_manifest(const std::filesystem::path& folder) {
  return ManifestReader(folder / kManifest).read();
}

std::optional<std::string> find_damage(const std::filesystem::path& folder,
                                       const CheckpointManifest& manifest, int part,
                                       int num_parts) {
  for (auto i = static_cast<size_t>(part); i < manifest.files.size();
       i += static_cast<size_t>(num_parts)) {
    const CheckpointFile& file = manifest.files[i];
    if (auto damage = damage_of(folder / file.name, file)) return damage;
  }
  return std::nullopt;
}

std::optional<int64_t> step_of_folder(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  const bool is_step = name.starts_with("step_") && name.size() > 5 && name.size() < 20 &&
                       name.find_first_not_of("0123456789", 5) == std::string::npos;
  return is_step ? std::optional<int64_t>(std::stoll(name.substr(5))) : std::nullopt;
}

std::vector<std::filesystem::path> finished_checkpoints(const std::filesystem::path& parent) {
  std::vector<std::filesystem::path> paths;
  for (const auto& [step, path] : step_folders(parent)) {
    if (std::filesystem::exists(path / kManifest)) paths.push_back(path);
  }
  return paths;
}

void remove_unfinished_checkpoints(const std::filesystem::path& parent) {
  for (const auto& [step, path] : step_folders(parent)) {
    std::error_code error;
    const bool is_finished = std::filesystem::exists(path / kManifest);
    if (!is_finished && std::filesystem::exists(path / kUnfinished)) {
      remove_checkpoint(path);
    } else if (std::filesystem::is_empty(path, error)) {
      std::filesystem::remove(path, error);
    }
  }
}

}  // namespace grpo::parallel
