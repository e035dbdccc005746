#include "rl/data/prompt_template.h"

#include <nlohmann/json.hpp>

#include "model/core/errors.h"
#include "model/core/nearest_name.h"

namespace grpo::rl {

PromptTemplate::PromptTemplate(std::string_view text) {
  std::string literal;
  const auto finish_literal = [&] {
    if (!literal.empty()) pieces_.push_back({.is_field = false, .text = literal});
    literal.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '{' && c != '}') {
      literal += c;
    } else if (i + 1 < text.size() && text[i + 1] == c) {
      literal += c;
      ++i;
    } else if (c == '}') {
      throw ConfigError(fmt::format("'}}' at offset {} closes nothing; write }}}} for a brace", i));
    } else {
      const size_t end = text.find_first_of("{}", i + 1);
      if (end == std::string_view::npos || text[end] == '{')
        throw ConfigError(
            fmt::format("'{{' at offset {} is not closed; write {{{{ for a brace", i));
      if (end == i + 1) throw ConfigError(fmt::format("no field name at offset {}", i));
      finish_literal();
      pieces_.push_back({.is_field = true, .text = std::string(text.substr(i + 1, end - i - 1))});
      i = end;
    }
  }
  finish_literal();
}

namespace {

std::string field_text(const nlohmann::json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) {
    std::vector<std::string> names;
    for (const auto& [key, value] : object.items()) names.push_back(key);
    const std::string nearest = nearest_name(name, names);
    throw DataError(
        fmt::format("has no field \"{}\"{}", name,
                    nearest.empty() ? "" : fmt::format("; the nearest is \"{}\"", nearest)));
  }
  if (found->is_string()) return found->get<std::string>();
  if (found->is_number() || found->is_boolean()) return found->dump();
  throw DataError(fmt::format("field \"{}\" is {}; allowed: string, number, boolean", name,
                              found->type_name()));
}

}  // namespace

std::string PromptTemplate::fill(const nlohmann::json& object) const {
  std::string result;
  for (const Piece& piece : pieces_)
    result += piece.is_field ? field_text(object, piece.text) : piece.text;
  return result;
}

}  // namespace grpo::rl
