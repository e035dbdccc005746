#include "app/text/scalar_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace grpo::app {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A decimal number taken apart: sign, digits without the point, and how many of them stand before
// it.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t point = 0;
};

// [+-]digits[.digits][e[+-]digits]; nullopt for other text.
std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal decimal;
  size_t i = 0;
  if (i < text.size() && (text[i] == '+' || text[i] == '-')) decimal.negative = text[i++] == '-';
  const size_t first_digit = i;
  while (i < text.size() && is_digit(text[i])) decimal.digits += text[i++];
  // 010 is eight to some readers and ten to others.
  if (i - first_digit > 1 && text[first_digit] == '0') return std::nullopt;
  decimal.point = static_cast<int64_t>(decimal.digits.size());
  if (i < text.size() && text[i] == '.') {
    for (++i; i < text.size() && is_digit(text[i]); ++i) decimal.digits += text[i];
  }
  if (decimal.digits.empty()) return std::nullopt;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    const bool shrinks = i < text.size() && text[i] == '-';
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    uint32_t exponent = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + i, end, exponent);
    if (error != std::errc() || rest != end) return std::nullopt;
    decimal.point += shrinks ? -int64_t{exponent} : int64_t{exponent};
    return decimal;
  }
  return i == text.size() ? std::optional(decimal) : std::nullopt;
}

bool is_plain_word(const std::string& text) {
  static constexpr std::string_view kReserved[] = {"true", "false", "null", "yes", "no",
                                                   "on",   "off",   "y",    "n",   "nan"};
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '/';
  };
  if (text.empty() || !is_letter(text.front())) return false;
  const auto is_plain = [&](char c) { return is_letter(c) || is_digit(c) || c == '.' || c == '-'; };
  if (!std::all_of(text.begin(), text.end(), is_plain)) return false;
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  });
  return std::find(std::begin(kReserved), std::end(kReserved), lower) == std::end(kReserved);
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text) {
  std::optional<Decimal> decimal = parse_decimal(text);
  if (!decimal) return std::nullopt;
  std::string& digits = decimal->digits;
  while (!digits.empty() && digits.front() == '0') {
    digits.erase(digits.begin());
    --decimal->point;
  }
  while (!digits.empty() && digits.back() == '0') digits.pop_back();
  if (digits.empty()) return 0;
  constexpr int64_t kMostDigits = 19;
  if (static_cast<int64_t>(digits.size()) > decimal->point || decimal->point > kMostDigits) {
    return std::nullopt;
  }
  digits.append(static_cast<size_t>(decimal->point) - digits.size(), '0');
  if (decimal->negative) digits.insert(digits.begin(), '-');
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<double> parse_number(std::string_view text) {
  if (!parse_decimal(text)) return std::nullopt;
  if (text.front() == '+') text.remove_prefix(1);
  double value = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || rest != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string write_bool(bool value) { return value ? "true" : "false"; }

std::string write_integer(int64_t value) { return fmt::format("{}", value); }

std::string write_number(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = fmt::format("{}", value);
  if (text.find('.') != std::string::npos) return text;
  const size_t exponent = text.find('e');
  text.insert(exponent == std::string::npos ? text.size() : exponent, ".0");
  return text;
}

std::string write_text(const std::string& value) {
  if (is_plain_word(value)) return value;
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace grpo::app
