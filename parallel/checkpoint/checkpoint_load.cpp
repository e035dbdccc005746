#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "model/core/errors.h"
#include "model/files/safetensors.h"
#include "parallel/checkpoint/checkpoint.h"

namespace grpo::parallel {

namespace {

constexpr const char* kAnother = "this checkpoint is of another model or configuration";

// Files and tensors of a content: file name -> tensors.
using Names = std::map<std::string, std::set<std::string>>;

std::string file_name(const CheckpointTensor& tensor) { return tensor.file + ".safetensors"; }

Names names_of(const CheckpointContent& content) {
  Names names;
  for (const CheckpointTensor& tensor : content.tensors)
    names[file_name(tensor)].insert(tensor.name);
  return names;
}

void refuse_surplus_files(const std::filesystem::path& folder, const Names& names) {
  for (const CheckpointFile& file : read_manifest(folder).files) {
    if (file.name.ends_with(".safetensors") && !names.contains(file.name)) {
      throw DataError(
          fmt::format("{}: has no place in this run: {}", (folder / file.name).string(), kAnother));
    }
  }
}

void refuse_surplus_tensors(const model::SafetensorsFile& file,
                            const std::set<std::string>& names) {
  for (const model::TensorInfo& info : file.tensors()) {
    if (!names.contains(info.name)) {
      throw DataError(fmt::format("{}: tensor '{}' has no place in this run: {}",
                                  file.path().string(), info.name, kAnother));
    }
  }
}

void check_tensor(const model::SafetensorsFile& file, const CheckpointTensor& tensor) {
  const model::TensorInfo* info = file.find(tensor.name);
  if (info != nullptr && info->shape == tensor.shape && info->dtype == tensor.dtype) return;
  throw DataError(fmt::format("{}: tensor '{}' {}: {}", file.path().string(), tensor.name,
                              info == nullptr ? "is missing" : "has another shape or dtype",
                              kAnother));
}

// Index of the first value that is not finite, or -1. Bytes of a file may lie unaligned.
template <typename T>
int64_t first_not_finite(std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    if (!std::isfinite(static_cast<float>(value))) return static_cast<int64_t>(i);
  }
  return -1;
}

void check_finite(const model::SafetensorsFile& file, const CheckpointTensor& tensor,
                  int64_t first_element, std::span<const std::byte> bytes) {
  const int64_t index = tensor.dtype == DType::kFloat32    ? first_not_finite<float>(bytes)
                        : tensor.dtype == DType::kBfloat16 ? first_not_finite<Bfloat16>(bytes)
                                                           : -1;
  if (index < 0) return;
  const int64_t element = first_element + index;
  const int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
  const std::string place = tensor.shape.size() == 2
                                ? fmt::format("row {}, column {}", element / cols, element % cols)
                                : fmt::format("element {}", element);
  throw DataError(fmt::format("{}: tensor '{}' holds a value that is not finite at {}",
                              file.path().string(), tensor.name, place));
}

}  // namespace

void load_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content,
                     Surplus surplus) {
  const Names names = names_of(content);
  if (surplus == Surplus::kRefuse) refuse_surplus_files(folder, names);
  std::vector<const CheckpointPiece*> pieces;
  pieces.reserve(content.pieces.size());
  for (const CheckpointPiece& piece : content.pieces) pieces.push_back(&piece);
  std::stable_sort(
      pieces.begin(), pieces.end(),
      [](const CheckpointPiece* a, const CheckpointPiece* b) { return a->tensor < b->tensor; });
  std::string open_name;
  std::optional<model::SafetensorsFile> file;
  for (const CheckpointPiece* piece : pieces) {
    const CheckpointTensor& tensor = content.tensors[piece->tensor];
    if (file_name(tensor) != open_name) {
      open_name = file_name(tensor);
      file.emplace(folder / open_name);
      if (surplus == Surplus::kRefuse) refuse_surplus_tensors(*file, names.at(open_name));
    }
    check_tensor(*file, tensor);
    const size_t element_bytes = dtype_size_bytes(tensor.dtype);
    const auto begin = static_cast<size_t>(piece->first_element) * element_bytes;
    const std::span<const std::byte> bytes =
        file->bytes(tensor.name).subspan(begin, piece->values.size_bytes());
    check_finite(*file, tensor, piece->first_element, bytes);
    copy_tensor(piece->values, Tensor(const_cast<std::byte*>(bytes.data()),  // only read
                                      tensor.dtype, piece->values.shape(), Device::cpu()));
  }
}

}  // namespace grpo::parallel
