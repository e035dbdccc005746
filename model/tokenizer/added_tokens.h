// Tokens that are cut out of a text before anything else happens to it, such as <|im_start|>.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace grpo::model {

// As tokenizer.json describes them.
struct AddedToken {
  int32_t id;
  std::string content;
  bool single_word = false;  // matches only between characters that are not word characters
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // is looked for in the normalized text
  bool special = false;      // a control token, skipped when decoding without special tokens
};

// Finds the leftmost, then longest occurrences of a set of tokens. Immutable; thread-safe.
class AddedTokenFinder {
 public:
  // `tokens` and the texts they are looked for as; of equal texts the first token counts.
  explicit AddedTokenFinder(const std::vector<std::pair<std::string, AddedToken>>& tokens);

  using TextHandler = std::function<void(std::string_view)>;
  using TokenHandler = std::function<void(int32_t)>;
  // Calls the handlers in text order with what lies between tokens (never empty) and with tokens.
  void split(std::string_view text, const TextHandler& on_text, const TokenHandler& on_token) const;

 private:
  struct Node {
    int32_t token = -1;  // index into tokens_ of the token that ends here
    std::vector<std::pair<char, int32_t>> children;
  };
  struct Match {
    int32_t token;
    size_t length;
  };

  int32_t child_of(int32_t node, char byte) const;
  Match longest_at(std::string_view text, size_t position) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie over bytes; node 0 is its root
};

}  // namespace grpo::model
