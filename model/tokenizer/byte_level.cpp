#include "model/tokenizer/byte_level.h"

#include <array>

#include "model/tokenizer/unicode_text.h"

namespace grpo::model {
namespace {

constexpr char32_t kFirstSubstitute = 0x100;
constexpr size_t kNumCharacters = 0x144;  // 0x100 + the 68 bytes that do not stand for themselves

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Alphabet {
  std::array<char32_t, 256> character_of{};
  std::array<int16_t, kNumCharacters> byte_of{};  // -1: not in the alphabet

  constexpr Alphabet() {
    byte_of.fill(-1);
    char32_t next_substitute = kFirstSubstitute;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const char32_t character = stands_for_itself(byte) ? byte : next_substitute++;
      character_of[byte] = character;
      byte_of[character] = static_cast<int16_t>(byte);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::string byte_level_piece(uint8_t byte) {
  std::string piece;
  append_utf8(piece, kAlphabet.character_of[byte]);
  return piece;
}

std::optional<std::string> byte_level_bytes(std::string_view piece) {
  std::string bytes;
  for (size_t position = 0; position < piece.size();) {
    const Utf8Step step = utf8_step(piece, position);
    if (step.status != Utf8Status::kValid) return std::nullopt;
    const char32_t character = code_point_at(piece, position);
    if (character >= kNumCharacters || kAlphabet.byte_of[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[character]));
    position += step.length;
  }
  return bytes;
}

}  // namespace grpo::model
