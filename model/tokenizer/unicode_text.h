// UTF-8 and the Unicode properties that tokenizers need. Thread-safe (no state).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace grpo::model {

enum class Utf8Status {
  kValid,    // `length` bytes are one character
  kInvalid,  // `length` bytes begin no character (the longest prefix that could have begun one, at
             // least a byte)
  kIncomplete,  // the text ends inside a character that began well
};

struct Utf8Step {
  Utf8Status status;
  size_t length;
};

// Looks at the character that starts at byte `position` (inside the text). Well-formed as in the
// Unicode standard's table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF.
Utf8Step utf8_step(std::string_view text, size_t position);

// The code point of the character that starts at byte `position`; U+FFFD of an ill-formed one.
char32_t code_point_at(std::string_view text, size_t position);
void append_utf8(std::string& text, char32_t code_point);

// Throws DataError: the first bad byte and its offset.
void check_utf8(std::string_view text);

// Each ill-formed or unfinished step becomes one U+FFFD, as Python and Rust replace them.
std::string replace_invalid_utf8(std::string_view text);

// Normalization form C of well-formed UTF-8. Linear in the length, also for endless runs of
// combining marks.
std::string to_nfc(std::string_view text);

bool is_white_space(char32_t code_point);  // the property White_Space
bool is_word(char32_t code_point);         // letters, marks, decimal digits, connectors, joiners

}  // namespace grpo::model
