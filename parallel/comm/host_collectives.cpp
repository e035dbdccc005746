#include "parallel/comm/host_collectives.h"

#include <algorithm>
#include <cstring>

#include "model/core/errors.h"

namespace grpo::parallel {

namespace {

template <typename T>
std::vector<T> all_gather_value(Communicator& group, T value) {
  std::vector<T> values(static_cast<size_t>(group.size()));
  const auto size = static_cast<int64_t>(sizeof(T));
  group.all_gather(Tensor(values.data(), DType::kUint8, {group.size() * size}, Device::cpu()),
                   Tensor(&value, DType::kUint8, {size}, Device::cpu()), Stream::none());
  return values;
}

}  // namespace

std::vector<std::vector<std::byte>> all_gather_bytes(Communicator& group,
                                                     std::span<const std::byte> bytes) {
  const std::vector<int64_t> sizes = all_gather_value(group, static_cast<int64_t>(bytes.size()));
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::byte> own(static_cast<size_t>(longest));
  if (!bytes.empty()) std::memcpy(own.data(), bytes.data(), bytes.size());
  std::vector<std::byte> all(own.size() * sizes.size());
  group.all_gather(
      Tensor(all.data(), DType::kUint8, {static_cast<int64_t>(all.size())}, Device::cpu()),
      Tensor(own.data(), DType::kUint8, {longest}, Device::cpu()), Stream::none());
  std::vector<std::vector<std::byte>> result;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto begin = all.begin() + static_cast<int64_t>(rank) * longest;
    result.emplace_back(begin, begin + sizes[rank]);
  }
  return result;
}

std::vector<double> all_gather_double(Communicator& group, double value) {
  return all_gather_value(group, value);
}

bool any_rank(Communicator& group, bool value) {
  const std::vector<uint8_t> flags = all_gather_value<uint8_t>(group, value ? 1 : 0);
  return std::any_of(flags.begin(), flags.end(), [](uint8_t flag) { return flag != 0; });
}

}  // namespace grpo::parallel
