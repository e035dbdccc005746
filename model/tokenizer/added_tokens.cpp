#include "model/tokenizer/added_tokens.h"

#include <algorithm>

#include "model/tokenizer/unicode_text.h"

namespace grpo::model {
namespace {

// Start of the last character of a non-empty UTF-8 text.
size_t last_character(std::string_view text) {
  size_t position = text.size() - 1;
  while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xc0) == 0x80) --position;
  return position;
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  const size_t position = last_character(text);
  return is_word(code_point_at(text, position));
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word(code_point_at(text, 0));
}

// Where the white space at the end of the text begins.
size_t trailing_space_start(std::string_view text) {
  while (!text.empty()) {
    const size_t position = last_character(text);
    if (!is_white_space(code_point_at(text, position))) break;
    text = text.substr(0, position);
  }
  return text.size();
}

size_t leading_space_length(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    const size_t length = utf8_step(text, position).length;
    if (!is_white_space(code_point_at(text, position))) break;
    position += length;
  }
  return position;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<std::pair<std::string, AddedToken>>& tokens)
    : nodes_(1) {
  for (const auto& [text, token] : tokens) {
    int32_t node = 0;
    for (const char byte : text) {
      int32_t child = child_of(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_[static_cast<size_t>(node)].children.emplace_back(byte, child);
        nodes_.emplace_back();
      }
      node = child;
    }
    if (node == 0 || nodes_[static_cast<size_t>(node)].token >= 0) continue;
    nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(tokens_.size());
    tokens_.push_back(token);
  }
}

int32_t AddedTokenFinder::child_of(int32_t node, char byte) const {
  for (const auto& [edge, child] : nodes_[static_cast<size_t>(node)].children) {
    if (edge == byte) return child;
  }
  return -1;
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, size_t position) const {
  Match longest{-1, 0};
  int32_t node = 0;
  for (size_t end = position; end < text.size();) {
    node = child_of(node, text[end]);
    if (node < 0) break;
    ++end;
    const int32_t token = nodes_[static_cast<size_t>(node)].token;
    if (token >= 0) longest = {token, end - position};
  }
  return longest;
}

void AddedTokenFinder::split(std::string_view text, const TextHandler& on_text,
                             const TokenHandler& on_token) const {
  size_t done = 0;
  for (size_t position = 0; position < text.size();) {
    const Match match = longest_at(text, position);
    if (match.token < 0) {
      ++position;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(match.token)];
    size_t begin = position;
    size_t end = position + match.length;
    position = end;  // also past an occurrence that does not count
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    // A token may begin inside white space that the one before took with it: it counts all the
    // same.
    if (token.lstrip && begin > done)
      begin = done + trailing_space_start(text.substr(done, begin - done));
    if (token.rstrip) end += leading_space_length(text.substr(end));
    if (begin > done) on_text(text.substr(done, begin - done));
    on_token(token.id);
    done = std::max(done, end);
  }
  if (done < text.size()) on_text(text.substr(done));
}

}  // namespace grpo::model
