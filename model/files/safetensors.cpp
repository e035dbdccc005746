#include "model/files/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/core/errors.h"
#include "model/core/file_descriptor.h"
#include "model/files/input_file.h"
#include "model/files/json_text.h"

namespace grpo::model {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "tensor bytes are used as they lie in the file");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxRank = 16;

struct FileDType {
  std::string_view name;
  size_t size_bytes;
  std::optional<DType> dtype;  // empty: the format has it, this program does not
};

constexpr std::array<FileDType, 16> kFileDTypes = {{
    {"F32", 4, DType::kFloat32},
    {"BF16", 2, DType::kBfloat16},
    {"I32", 4, DType::kInt32},
    {"I64", 8, DType::kInt64},
    {"U8", 1, DType::kUint8},
    {"F64", 8, std::nullopt},
    {"F16", 2, std::nullopt},
    {"I16", 2, std::nullopt},
    {"I8", 1, std::nullopt},
    {"U16", 2, std::nullopt},
    {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},
    {"BOOL", 1, std::nullopt},
    {"F8_E4M3", 1, std::nullopt},
    {"F8_E5M2", 1, std::nullopt},
    {"C64", 8, std::nullopt},
}};

// One header entry; offsets count from the start of the data.
struct Entry {
  TensorInfo info;
  const FileDType* file_dtype;
  uint64_t begin;
  uint64_t end;
};

uint64_t unsigned_of(const json& value, const std::string& where) {
  if (!value.is_number_unsigned()) {
    throw DataError(
        fmt::format("{} holds {}, expected an integer of at least 0", where, shown(value)));
  }
  return value.get<uint64_t>();
}

const FileDType& dtype_of(const json& entry, const std::string& where) {
  const auto found = entry.find("dtype");
  if (found == entry.end() || !found->is_string()) {
    throw DataError(fmt::format("{}: dtype is missing or not a string", where));
  }
  const auto& name = found->get_ref<const std::string&>();
  const auto dtype =
      std::find_if(kFileDTypes.begin(), kFileDTypes.end(),
                   [&](const FileDType& candidate) { return candidate.name == name; });
  if (dtype == kFileDTypes.end()) {
    throw DataError(fmt::format("{}: unknown dtype {}", where, shown_text(name)));
  }
  return *dtype;
}

// Sizes of a shape and, through `size_bytes`, the bytes they need; every product checked.
std::vector<int64_t> shape_of(const json& entry, size_t element_bytes, const std::string& where,
                              uint64_t& size_bytes) {
  const auto found = entry.find("shape");
  if (found == entry.end() || !found->is_array()) {
    throw DataError(fmt::format("{}: shape is missing or not a list", where));
  }
  if (found->size() > kMaxRank) {
    throw DataError(fmt::format("{}: shape has {} dims, at most {} are allowed", where,
                                found->size(), kMaxRank));
  }
  std::vector<int64_t> shape;
  size_bytes = element_bytes;
  for (const json& item : *found) {
    const uint64_t size = unsigned_of(item, where + ": shape");
    if (size > uint64_t{INT64_MAX} || __builtin_mul_overflow(size_bytes, size, &size_bytes) ||
        size_bytes > uint64_t{INT64_MAX}) {
      throw DataError(fmt::format("{}: shape is too large for a 64-bit size", where));
    }
    shape.push_back(static_cast<int64_t>(size));
  }
  return shape;
}

Entry entry_of(const std::string& name, const json& value, const std::string& path) {
  const std::string where = fmt::format("{}: tensor {}", path, shown_text(name));
  if (!value.is_object())
    throw DataError(fmt::format("{} is {}, expected an object", where, shown(value)));
  const FileDType& file_dtype = dtype_of(value, where);
  uint64_t size_bytes = 0;
  std::vector<int64_t> shape = shape_of(value, file_dtype.size_bytes, where, size_bytes);
  const auto offsets = value.find("data_offsets");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2) {
    throw DataError(fmt::format("{}: data_offsets is not a list of two offsets", where));
  }
  const uint64_t begin = unsigned_of((*offsets)[0], where + ": data_offsets");
  const uint64_t end = unsigned_of((*offsets)[1], where + ": data_offsets");
  if (value.size() != 3) {
    throw DataError(fmt::format("{}: keys other than dtype, shape and data_offsets", where));
  }
  if (begin > end || end - begin != size_bytes) {
    throw DataError(fmt::format("{}: data_offsets [{}, {}] do not span the {} bytes of its shape",
                                where, begin, end, size_bytes));
  }
  return Entry{
      {name, file_dtype.dtype.value_or(DType::kUint8), std::move(shape)}, &file_dtype, begin, end};
}

// The data must be covered from its first to its last byte, without holes or overlaps.
void check_coverage(std::vector<Entry>& entries, uint64_t data_bytes, const std::string& path) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    const std::string where = fmt::format("{}: tensor {}", path, shown_text(entry.info.name));
    if (entry.end > data_bytes) {
      throw DataError(fmt::format("{}: data_offsets end at {}, the file holds {} data bytes", where,
                                  entry.end, data_bytes));
    }
    if (entry.begin != covered) {
      throw DataError(fmt::format(
          "{}: data_offsets begin at {}, which {} byte {}", where, entry.begin,
          entry.begin < covered ? "overlaps data up to" : "leaves a hole from", covered));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw DataError(
        fmt::format("{}: the tensors use {} of {} data bytes", path, covered, data_bytes));
  }
}

}  // namespace

int64_t TensorInfo::num_elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) {
    CHECK(size >= 0 && !__builtin_mul_overflow(count, size, &count), "tensor {} is too large",
          name);
  }
  return count;
}

size_t TensorInfo::size_bytes() const {
  size_t bytes = 0;
  CHECK(
      !__builtin_mul_overflow(static_cast<size_t>(num_elements()), dtype_size_bytes(dtype), &bytes),
      "tensor {} is too large", name);
  return bytes;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  map_file();
  try {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, mapping_, kLengthBytes);
    if (header_bytes > kMaxHeaderBytes) {
      throw DataError(fmt::format("{}: header of {} bytes, at most {} are allowed", path_.string(),
                                  header_bytes, kMaxHeaderBytes));
    }
    if (header_bytes > mapping_bytes_ - kLengthBytes) {
      throw DataError(fmt::format("{}: header of {} bytes, but the file has {} bytes (truncated?)",
                                  path_.string(), header_bytes, mapping_bytes_));
    }
    read_header({reinterpret_cast<const char*>(mapping_) + kLengthBytes, header_bytes});
  } catch (...) {  // the destructor does not run for a constructor that throws
    ::munmap(const_cast<std::byte*>(mapping_), mapping_bytes_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() { ::munmap(const_cast<std::byte*>(mapping_), mapping_bytes_); }

void SafetensorsFile::map_file() {
  const std::string name = path_.string();
  if (const auto problem = input_problem(path_)) {
    throw DataError(fmt::format("{}: {}", name, *problem));
  }
  // O_NONBLOCK: a file that becomes a pipe now must not hang; regular files ignore it.
  const FileDescriptor file = FileDescriptor::open(path_, O_RDONLY | O_NONBLOCK);
  if (!file.is_open()) throw DataError(fmt::format("{}: {}", name, std::strerror(errno)));
  struct stat status {};
  const bool is_regular = ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode);
  const size_t size = is_regular ? static_cast<size_t>(status.st_size) : 0;
  if (!is_regular) throw DataError(fmt::format("{}: not a regular file", name));
  if (size < kLengthBytes) {
    throw DataError(
        fmt::format("{}: {} bytes, a safetensors file has at least {}", name, size, kLengthBytes));
  }
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED)
    throw DataError(fmt::format("{}: cannot map: {}", name, std::strerror(errno)));
  mapping_ = static_cast<const std::byte*>(address);
  mapping_bytes_ = size;
}

void SafetensorsFile::read_header(std::string_view header) {
  const std::string path = path_.string();
  if (header.empty() || header.front() != '{') {
    throw DataError(
        fmt::format("{}: the header does not start with '{{' (not a safetensors file?)", path));
  }
  const json object = parse_json(header, path + ": header");
  std::vector<Entry> entries;
  for (const auto& [name, value] : object.items()) {
    if (name != "__metadata__") {
      entries.push_back(entry_of(name, value, path));
      continue;
    }
    if (!value.is_object()) throw DataError(fmt::format("{}: __metadata__ is not an object", path));
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) {
        throw DataError(fmt::format("{}: __metadata__ {} is not a string", path, shown_text(key)));
      }
      metadata_[key] = text.get<std::string>();
    }
  }
  const size_t data_start = kLengthBytes + header.size();
  check_coverage(entries, mapping_bytes_ - data_start, path);
  for (Entry& entry : entries) {
    if (!entry.file_dtype->dtype) {
      unsupported_[entry.info.name] = entry.file_dtype->name;
      continue;
    }
    index_[entry.info.name] = {tensors_.size(), data_start + entry.begin};
    tensors_.push_back(std::move(entry.info));
  }
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto unsupported = unsupported_.find(name);
  if (unsupported != unsupported_.end()) {
    throw DataError(fmt::format("{}: tensor {} is {}; F32, BF16, I32, I64 and U8 are supported",
                                path_.string(), shown_text(name), unsupported->second));
  }
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second.first];
}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) {
    throw DataError(fmt::format("{}: no tensor {}", path_.string(), shown_text(name)));
  }
  return {mapping_ + index_.at(name).second, info->size_bytes()};
}

}  // namespace grpo::model
