#include "model/core/counter_rng.h"

#include <cmath>
#include <numbers>

namespace grpo {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr uint32_t kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

uint64_t mix_bits(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  return mix_bits(hash);
}

namespace {

// Four words keyed by four 64-bit values: a and b fill the counter, seed and stream the key.
std::array<uint32_t, 4> words_at(uint64_t seed, uint64_t stream, uint64_t a, uint64_t b) {
  const uint64_t key = mix_bits(seed ^ mix_bits(stream + 0x9E3779B97F4A7C15ull));
  return philox4x32({static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32),
                     static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32)},
                    {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

double to_unit(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace

float normal_at(uint64_t seed, uint64_t stream, uint64_t row, uint64_t column) {
  const auto words = words_at(seed, stream, row, column);
  const double radius = std::sqrt(-2.0 * std::log1p(-to_unit(words[0], words[1])));
  const double angle = 2.0 * std::numbers::pi * to_unit(words[2], words[3]);
  return static_cast<float>(radius * std::cos(angle));
}

double uniform_at(uint64_t seed, uint64_t stream, uint64_t a, uint64_t b) {
  const auto words = words_at(seed, stream, a, b);
  return to_unit(words[0], words[1]);
}

}  // namespace grpo
