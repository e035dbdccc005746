// Templates such as "{question}\nAnswer:": {field} is a field of a JSON object, {{ and }} are
// braces.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace grpo::rl {

// Immutable, thread-safe.
class PromptTemplate {
 public:
  // Throws ConfigError with the byte offset: a brace without its partner, or an empty field name.
  explicit PromptTemplate(std::string_view text);

  // Strings are taken as they are, numbers and booleans in JSON's spelling. Throws DataError for a
  // field that is missing or of another type.
  std::string fill(const nlohmann::json& object) const;

 private:
  struct Piece {
    bool is_field;
    std::string text;
  };
  std::vector<Piece> pieces_;
};

}  // namespace grpo::rl
