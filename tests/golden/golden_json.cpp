#include "tests/golden/golden_json.h"

#include <array>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "model/core/errors.h"

namespace grpo::golden {

namespace {

struct SpecialNumber {
  std::string_view literal;
  std::string_view marker;  // a string that no golden file holds
  double value;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array<SpecialNumber, 3> kSpecialNumbers{
    {{"-Infinity", "\x7f-inf", -kInfinity},
     {"Infinity", "\x7finf", kInfinity},
     {"NaN", "\x7fnan", std::numeric_limits<double>::quiet_NaN()}}};

// Replaces the literals outside strings by quoted markers.
std::string mark_special_numbers(const std::string& text) {
  std::string marked;
  marked.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i);
    if (in_string && text[i] == '\\') {
      marked += rest.substr(0, 2);
      i += std::min<size_t>(2, rest.size());
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    const SpecialNumber* special = nullptr;
    for (const SpecialNumber& candidate : kSpecialNumbers)
      if (!in_string && special == nullptr && rest.starts_with(candidate.literal))
        special = &candidate;
    if (special != nullptr) {
      marked.append("\"").append(special->marker).append("\"");
      i += special->literal.size();
    } else {
      marked += text[i++];
    }
  }
  return marked;
}

}  // namespace

nlohmann::json parse_golden_json(const std::string& text) {
  const auto restore = [](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (event != nlohmann::json::parse_event_t::value || !value.is_string()) return true;
    const auto& content = value.get_ref<const std::string&>();
    for (const SpecialNumber& special : kSpecialNumbers) {
      if (content == special.marker) {
        value = special.value;
        break;
      }
    }
    return true;
  };
  return nlohmann::json::parse(mark_special_numbers(text), restore);
}

nlohmann::json read_golden_json(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw DataError(path.string() + ": cannot be read");
  try {
    return parse_golden_json(text.str());
  } catch (const nlohmann::json::exception& error) {
    throw DataError(path.string() + ": " + error.what());
  }
}

}  // namespace grpo::golden
