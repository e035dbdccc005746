// Decimal numbers as texts, compared without rounding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace grpo::rl {

// The one spelling of a number's value: no plus sign, no leading zeros, no trailing zeros after the
// point, "0" for every zero. nullopt unless the text is [+-]digits[.digits] with a digit somewhere.
std::optional<std::string> canonical_decimal(std::string_view text);

}  // namespace grpo::rl
