// Counter-based random numbers (Philox 4x32-10, Salmon et al., SC'11): a value is a function of its
// key alone, so that a layout, a batch size or a schedule cannot change it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace grpo {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// 64-bit FNV-1a of a name, finished by an avalanche step; used to key streams by name.
uint64_t hash_name(std::string_view name);

// A mixing of 64-bit words with good avalanche (splitmix64's finalizer).
uint64_t mix_bits(uint64_t value);

// Standard normal draw keyed by (seed, stream, row, column); Box-Muller in double, rounded once.
float normal_at(uint64_t seed, uint64_t stream, uint64_t row, uint64_t column);

// Uniform in [0, 1) with 53 bits, keyed by (seed, stream, a, b).
double uniform_at(uint64_t seed, uint64_t stream, uint64_t a, uint64_t b);

}  // namespace grpo
