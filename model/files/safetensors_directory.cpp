#include <nlohmann/json.hpp>

#include "model/core/errors.h"
#include "model/files/input_file.h"
#include "model/files/json_text.h"
#include "model/files/safetensors.h"

namespace grpo::model {
namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

// A shard is a file beside its index: a name that leads anywhere else is refused.
void check_shard_name(const std::string& shard, const std::string& index_path) {
  const bool is_plain = !shard.empty() && shard.find('/') == std::string::npos &&
                        shard.find('\0') == std::string::npos && shard.ends_with(".safetensors");
  if (!is_plain) {
    throw DataError(
        fmt::format("{}: weight_map names file {}; a plain *.safetensors name is expected",
                    index_path, shown_text(shard)));
  }
}

}  // namespace

WeightsDirectory::WeightsDirectory(const std::filesystem::path& directory) : directory_(directory) {
  const std::filesystem::path index_path = directory_ / kIndexName;
  if (is_present(directory_ / kSingleName)) {
    files_.push_back(std::make_unique<SafetensorsFile>(directory_ / kSingleName));
    const SafetensorsFile* file = files_.back().get();
    for (const TensorInfo& tensor : file->tensors()) owner_[tensor.name] = file;
    for (const auto& [name, dtype] : file->unsupported()) owner_[name] = file;
    return;
  }
  if (!is_present(index_path)) {
    throw DataError(
        fmt::format("{}: holds neither {} nor {}", directory_.string(), kSingleName, kIndexName));
  }
  const nlohmann::json object = read_json_file(index_path);
  const auto weight_map = object.is_object() ? object.find("weight_map") : object.end();
  if (weight_map == object.end() || !weight_map->is_object() || weight_map->empty()) {
    throw DataError(
        fmt::format("{}: weight_map is missing, empty or not an object", index_path.string()));
  }
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, value] : weight_map->items()) {
    if (!value.is_string()) {
      throw DataError(fmt::format("{}: weight_map {} is {}, expected a file name",
                                  index_path.string(), shown_text(name), shown(value)));
    }
    const auto& shard = value.get_ref<const std::string&>();
    check_shard_name(shard, index_path.string());
    if (!opened.contains(shard)) {
      files_.push_back(std::make_unique<SafetensorsFile>(directory_ / shard));
      opened[shard] = files_.back().get();
    }
    if (!opened[shard]->unsupported().contains(name) && opened[shard]->find(name) == nullptr) {
      throw DataError(fmt::format("{}: weight_map puts {} into {}, which lacks it",
                                  index_path.string(), shown_text(name), shown_text(shard)));
    }
    owner_[name] = opened[shard];
  }
}

std::vector<TensorInfo> WeightsDirectory::tensors() const {
  std::vector<TensorInfo> all;
  all.reserve(owner_.size());
  for (const auto& [name, file] : owner_) {
    if (!file->unsupported().contains(name)) all.push_back(*file->find(name));
  }
  return all;
}

std::vector<std::string> WeightsDirectory::names() const {
  std::vector<std::string> all;
  all.reserve(owner_.size());
  for (const auto& [name, file] : owner_) all.push_back(name);
  return all;
}

const TensorInfo* WeightsDirectory::find(const std::string& name) const {
  const auto found = owner_.find(name);
  return found == owner_.end() ? nullptr : found->second->find(name);
}

std::span<const std::byte> WeightsDirectory::bytes(const std::string& name) const {
  const auto found = owner_.find(name);
  if (found == owner_.end()) {
    throw DataError(fmt::format("{}: no tensor {}", directory_.string(), shown_text(name)));
  }
  return found->second->bytes(name);
}

std::string WeightsDirectory::file_of(const std::string& name) const {
  const auto found = owner_.find(name);
  return found == owner_.end() ? directory_.string() : found->second->path().string();
}

}  // namespace grpo::model
