#include <cstring>

#include "model/core/errors.h"
#include "model/files/atomic_file.h"
#include "model/files/json_text.h"
#include "model/files/safetensors.h"

namespace grpo::model {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignmentBytes = 8;  // of the first data byte, as the format's own writer does it

std::string_view file_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kBfloat16:
      return "BF16";
    case DType::kInt32:
      return "I32";
    case DType::kInt64:
      return "I64";
    case DType::kUint8:
      return "U8";
  }
  return "unknown";
}

// The JSON header, padded with spaces, behind its length.
std::string header_text(const std::vector<TensorInfo>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> items;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    pairs.reserve(metadata.size());
    for (const auto& [key, value] : metadata) {
      pairs.push_back(fmt::format("{}:{}", json_string(key), json_string(value)));
    }
    items.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ",")));
  }
  uint64_t begin = 0;
  for (const TensorInfo& tensor : tensors) {
    const uint64_t end = begin + tensor.size_bytes();
    items.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                json_string(tensor.name), file_dtype_name(tensor.dtype),
                                fmt::join(tensor.shape, ","), begin, end));
    begin = end;
  }
  std::string json = fmt::format("{{{}}}", fmt::join(items, ","));
  json.resize((json.size() + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes, ' ');
  std::string text(kLengthBytes, '\0');
  const uint64_t length = json.size();
  std::memcpy(text.data(), &length, kLengthBytes);
  return text + json;
}

// Bytes of one tensor already written, as disjoint [begin, end) ranges.
class Coverage {
 public:
  // False when a byte of the range was covered before.
  bool add(uint64_t begin, uint64_t end) {
    if (begin == end) return true;
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first < end) return false;
    if (next != ranges_.begin() && std::prev(next)->second > begin) return false;
    if (next != ranges_.begin() && std::prev(next)->second == begin) {
      begin = std::prev(next)->first;
      ranges_.erase(std::prev(next));
    }
    if (next != ranges_.end() && next->first == end) {
      end = next->second;
      ranges_.erase(next);
    }
    ranges_[begin] = end;
    return true;
  }

  bool is_whole(uint64_t size) const {
    if (size == 0) return true;
    return ranges_.size() == 1 && ranges_.begin()->first == 0 && ranges_.begin()->second == size;
  }

 private:
  std::map<uint64_t, uint64_t> ranges_;
};

}  // namespace

struct SafetensorsWriter::State {
  struct Slot {
    DType dtype;
    uint64_t begin;  // in the file
    uint64_t size;   // bytes
    Coverage coverage;
  };

  explicit State(const std::filesystem::path& path) : file(path) {}

  void write_at(uint64_t offset, std::span<const std::byte> bytes) {
    file.write_at(offset, bytes);
    is_in_order = is_in_order && offset == checksum.num_bytes();
    if (is_in_order) checksum.add(bytes);
  }

  AtomicFile file;
  std::map<std::string, Slot> slots;
  Checksum64 checksum;
  bool is_in_order = true;
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorInfo>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>(path)) {
  const std::string header = header_text(tensors, metadata);
  uint64_t begin = header.size();
  for (const TensorInfo& tensor : tensors) {
    const uint64_t size = tensor.size_bytes();
    CHECK(tensor.name != "__metadata__", "a tensor has the name of the metadata");
    CHECK(state_->slots.emplace(tensor.name, State::Slot{tensor.dtype, begin, size, {}}).second,
          "tensor {} is listed twice", tensor.name);
    begin += size;
  }
  state_->write_at(0, std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const std::string& name, int64_t first_element,
                              std::span<const std::byte> bytes) {
  const auto found = state_->slots.find(name);
  CHECK(found != state_->slots.end(), "tensor {} was not announced", name);
  State::Slot& slot = found->second;
  const uint64_t element_bytes = dtype_size_bytes(slot.dtype);
  CHECK(first_element >= 0 && static_cast<uint64_t>(first_element) <= slot.size / element_bytes &&
            bytes.size() % element_bytes == 0 &&
            bytes.size() <= slot.size - static_cast<uint64_t>(first_element) * element_bytes,
        "{} bytes at element {} do not fit into tensor {}", bytes.size(), first_element, name);
  const uint64_t begin = static_cast<uint64_t>(first_element) * element_bytes;
  CHECK(slot.coverage.add(begin, begin + bytes.size()), "bytes of tensor {} written twice", name);
  state_->write_at(slot.begin + begin, bytes);
}

void SafetensorsWriter::commit() {
  for (const auto& [name, slot] : state_->slots) {
    CHECK(slot.coverage.is_whole(slot.size), "tensor {} was not written completely", name);
  }
  state_->file.commit();
}

const Checksum64& SafetensorsWriter::checksum() const {
  CHECK(state_->is_in_order, "a checksum of bytes that were written out of order");
  return state_->checksum;
}

}  // namespace grpo::model
