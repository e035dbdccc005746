// Typed scalars as YAML text: strict reading, and writing that reads back to the same value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace grpo::app {

// Decimal only; 1e3 and 4.0 are integers too, because they are exact. nullopt for anything else:
// fractions, values beyond 64 bits, and 0x10, 010 or 1_000, which YAML readers do not agree on.
std::optional<int64_t> parse_integer(std::string_view text);

// Any decimal spelling (1, 1., .5, 1e-6, 1E+6) of a finite double; nullopt for anything else.
std::optional<double> parse_number(std::string_view text);

std::string write_bool(bool value);
std::string write_integer(int64_t value);
// Shortest text that reads back to the same bits; always with a point, so that every YAML reader
// sees a number.
std::string write_number(double value);
// In double quotes unless every YAML reader takes the plain word for text.
std::string write_text(const std::string& value);

}  // namespace grpo::app
