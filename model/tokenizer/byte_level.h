// The byte-level alphabet of GPT-2-style tokenizers: each byte has a visible character, so that
// every token can be written in JSON. Thread-safe (constant tables).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace grpo::model {

// The character of a byte: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and
// up, in order.
std::string byte_level_piece(uint8_t byte);

// The bytes that a piece spells, or nullopt when it has a character outside the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view piece);

}  // namespace grpo::model
