// Safetensors files (https://huggingface.co/docs/safetensors): reading with every bound checked,
// writing by rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/core/dtype.h"
#include "model/files/checksum.h"

namespace grpo::model {

struct TensorInfo {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;

  int64_t num_elements() const;
  size_t size_bytes() const;
};

// One mapped file. Immutable; thread-safe. Throws DataError for anything malformed: header longer
// than the file or 100 MB, bad JSON, duplicate names, unknown dtype; data ranges that overlap,
// leave holes, leave the file or do not fit the shape. Tensors of the format's other dtypes (F16,
// F64, I8, ...) may lie in the file; only asking for one, with find() or bytes(), is an error.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const {
    return tensors_;
  }  // in file order, supported dtypes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const TensorInfo* find(const std::string& name) const;  // null when absent
  // Tensors of dtypes this program does not read: name -> dtype as the file spells it.
  const std::map<std::string, std::string>& unsupported() const { return unsupported_; }
  // Little-endian bytes of a tensor (unaligned). Throws DataError when absent.
  std::span<const std::byte> bytes(const std::string& name) const;

 private:
  void map_file();
  void read_header(std::string_view header);

  std::filesystem::path path_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::pair<size_t, size_t>>
      index_;                                       // name -> (position in tensors_, first byte)
  std::map<std::string, std::string> unsupported_;  // name -> dtype as the file spells it
  const std::byte* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

// The weights of a Hugging Face directory: model.safetensors, or the files that
// model.safetensors.index.json names (only the tensors that the index lists). Immutable;
// thread-safe. Throws DataError for a missing or malformed file, a shard name that is not a plain
// file name, and a listed tensor that its shard lacks.
class WeightsDirectory {
 public:
  explicit WeightsDirectory(const std::filesystem::path& directory);

  std::vector<TensorInfo> tensors() const;                // of all files, supported dtypes
  std::vector<std::string> names() const;                 // of all tensors, whatever their dtype
  const TensorInfo* find(const std::string& name) const;  // null when absent
  std::span<const std::byte> bytes(const std::string& name) const;
  // "dir/model-00001-of-00002.safetensors" for messages.
  std::string file_of(const std::string& name) const;

 private:
  std::filesystem::path directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> owner_;
};

// Writes one file of known tensors, elements in any order and each exactly once, to a temporary
// name; commit() syncs and renames. Without commit nothing stays behind. One thread at a time.
// Throws DataError (path, errno text) when the disk refuses; a double, missing or out-of-range
// write is a failed CHECK.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors,
                    const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Bytes of elements [first_element, ...) of a tensor, in its file dtype.
  void write(const std::string& name, int64_t first_element, std::span<const std::byte> bytes);
  void commit();  // every byte of every tensor must have been written
  // Of the file; only where everything was written in file order.
  const Checksum64& checksum() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace grpo::model
