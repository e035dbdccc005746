// gzip files in memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace grpo::app {

// The bytes as one gzip member, without a time or a name: equal bytes give equal files.
std::string gzip(std::span<const std::byte> bytes);

}  // namespace grpo::app
