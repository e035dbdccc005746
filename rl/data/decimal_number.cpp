#include "rl/data/decimal_number.h"

#include <algorithm>

namespace grpo::rl {

namespace {

bool all_digits(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::optional<std::string> canonical_decimal(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const size_t point = std::min(text.find('.'), text.size());
  std::string_view whole = text.substr(0, point);
  std::string_view fraction = text.substr(std::min(point + 1, text.size()));
  if (!all_digits(whole) || !all_digits(fraction) || (whole.empty() && fraction.empty()))
    return std::nullopt;
  whole.remove_prefix(std::min(whole.find_first_not_of('0'), whole.size()));
  const size_t last_nonzero = fraction.find_last_not_of('0');
  fraction = fraction.substr(0, last_nonzero == std::string_view::npos ? 0 : last_nonzero + 1);
  if (whole.empty() && fraction.empty()) return "0";
  std::string canonical = negative ? "-" : "";
  canonical += whole.empty() ? std::string_view("0") : whole;
  if (!fraction.empty()) canonical.append(".").append(fraction);
  return canonical;
}

}  // namespace grpo::rl
