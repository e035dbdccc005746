// Collectives on host values of any size, for what every rank must know: completions, sums, flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "model/core/communicator.h"

namespace grpo::parallel {

// Every member's bytes, in rank order.
std::vector<std::vector<std::byte>> all_gather_bytes(Communicator& group,
                                                     std::span<const std::byte> bytes);

// Every member's values of a plain type, in rank order.
template <typename T>
std::vector<std::vector<T>> all_gather_vector(Communicator& group, const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<std::vector<T>> result;
  for (const auto& bytes : all_gather_bytes(group, std::as_bytes(std::span(values)))) {
    std::vector<T>& received = result.emplace_back(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(received.data(), bytes.data(), bytes.size());
  }
  return result;
}

// Every member's value, in rank order.
std::vector<double> all_gather_double(Communicator& group, double value);

// True on every member when it is true on any.
bool any_rank(Communicator& group, bool value);

}  // namespace grpo::parallel
