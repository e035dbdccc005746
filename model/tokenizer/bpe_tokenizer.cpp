#include "model/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "model/core/errors.h"
#include "model/files/input_file.h"
#include "model/files/json_text.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe_merges.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/split_pattern.h"
#include "model/tokenizer/tokenizer_json.h"
#include "model/tokenizer/unicode_text.h"

namespace grpo::model {
namespace {

using PieceIds = std::unordered_map<std::string, int32_t>;

// What one call of encode() needs beside the tables.
struct EncodeState {
  std::vector<PatternMatcher> matchers;  // one for each split pattern
  BpeMerger merger;
  std::vector<int32_t> symbols;  // of the word at hand
  std::vector<int32_t> tokens;
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(const TokenizerJson& file, const std::string& path, const std::string& eos_token);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> tokens, bool skip_special_tokens) const override;
  std::string token_bytes(int32_t token, bool skip_special_tokens, bool& at_start) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> eos_token_id() const override { return eos_token_id_; }
  std::optional<int32_t> token_to_id(std::string_view piece) const override;

 private:
  struct Token {
    std::string bytes;
    bool is_special = false;
    bool exists = false;
  };

  void add_vocab(const TokenizerJson& file, const std::string& path);
  void add_added_tokens(const TokenizerJson& file, const std::string& path);
  Token& new_token(int32_t id, const std::string& piece, const std::string& path);
  int32_t id_in_merge(const std::string& piece, size_t number, const std::string& path) const;
  void encode_text(std::string_view text, size_t pattern, EncodeState& state) const;
  void encode_word(std::string_view word, EncodeState& state) const;

  bool normalize_nfc_;
  PieceIds piece_ids_;                   // vocabulary and added tokens, as the file spells them
  PieceIds word_ids_;                    // bytes of a token -> id; filled only for ignore_merges
  std::vector<Token> tokens_;            // by id
  std::array<int32_t, 256> byte_ids_{};  // -1: the vocabulary lacks the byte, which then vanishes
  BpeMergeTable merges_;
  std::vector<SplitPattern> patterns_;
  AddedTokenFinder raw_tokens_;         // looked for in the text as it is
  AddedTokenFinder normalized_tokens_;  // looked for in the normalized text between those
  std::optional<int32_t> eos_token_id_;
};

std::string searched_text(const TokenizerJson& file, const AddedToken& token) {
  return token.normalized && file.normalize_nfc ? to_nfc(token.content) : token.content;
}

// The added tokens of one kind, with the text to look for.
std::vector<std::pair<std::string, AddedToken>> finder_entries(const TokenizerJson& file,
                                                               bool normalized) {
  std::vector<std::pair<std::string, AddedToken>> entries;
  for (const AddedToken& token : file.added_tokens) {
    if (token.normalized == normalized) entries.emplace_back(searched_text(file, token), token);
  }
  return entries;
}

BpeTokenizer::BpeTokenizer(const TokenizerJson& file, const std::string& path,
                           const std::string& eos_token)
    : normalize_nfc_(file.normalize_nfc),
      merges_(file.merges.size()),
      raw_tokens_(finder_entries(file, false)),
      normalized_tokens_(finder_entries(file, true)) {
  add_vocab(file, path);
  for (size_t i = 0; i < file.merges.size(); ++i) {
    const auto& [left, right] = file.merges[i];
    const int32_t merged = id_in_merge(left + right, i, path);
    merges_.insert(id_in_merge(left, i, path), id_in_merge(right, i, path),
                   {static_cast<uint32_t>(i), merged});
  }
  add_added_tokens(file, path);
  for (const std::string& pattern : file.split_patterns)
    patterns_.emplace_back(pattern, path + ": pre_tokenizer");
  if (!eos_token.empty()) {
    eos_token_id_ = token_to_id(eos_token);
    if (!eos_token_id_) {
      throw DataError(
          fmt::format("{}: eos_token {} of tokenizer_config.json is not in the vocabulary", path,
                      shown_text(eos_token)));
    }
  }
}

BpeTokenizer::Token& BpeTokenizer::new_token(int32_t id, const std::string& piece,
                                             const std::string& path) {
  const auto index = static_cast<size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  Token& token = tokens_[index];
  if (token.exists)
    throw DataError(fmt::format("{}: {} has id {}, as another token", path, shown_text(piece), id));
  token.exists = true;
  token.bytes = byte_level_bytes(piece).value_or(piece);
  return token;
}

void BpeTokenizer::add_vocab(const TokenizerJson& file, const std::string& path) {
  piece_ids_.reserve(file.vocab.size() + file.added_tokens.size());
  const auto by_id = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto largest = std::max_element(file.vocab.begin(), file.vocab.end(), by_id);
  tokens_.resize(static_cast<size_t>(largest->second) + 1);
  for (const auto& [piece, id] : file.vocab) {
    const Token& token = new_token(id, piece, path);
    piece_ids_.emplace(piece, id);
    if (file.ignore_merges) word_ids_.emplace(token.bytes, id);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto found = piece_ids_.find(byte_level_piece(static_cast<uint8_t>(byte)));
    byte_ids_[byte] = found == piece_ids_.end() ? -1 : found->second;
    if (byte_ids_[byte] < 0 && file.has_unknown_token) {
      throw DataError(fmt::format(
          "{}: model.unk_token is set and byte 0x{:02x} has no token; unknown tokens are not "
          "supported",
          path, byte));
    }
  }
}

void BpeTokenizer::add_added_tokens(const TokenizerJson& file, const std::string& path) {
  for (const AddedToken& added : file.added_tokens) {
    const auto found = piece_ids_.find(added.content);
    if (found == piece_ids_.end()) {
      // The text it is looked for as is the text it stands for.
      new_token(added.id, searched_text(file, added), path);
      piece_ids_.emplace(added.content, added.id);
    } else if (found->second != added.id) {
      throw DataError(fmt::format("{}: added token {} has id {}, but also {}", path,
                                  shown_text(added.content), added.id, found->second));
    }
    if (added.special) tokens_[static_cast<size_t>(added.id)].is_special = true;
  }
}

int32_t BpeTokenizer::id_in_merge(const std::string& piece, size_t number,
                                  const std::string& path) const {
  const auto found = piece_ids_.find(piece);
  if (found == piece_ids_.end()) {
    throw DataError(fmt::format("{}: model.merges[{}] needs {}, which is not in model.vocab", path,
                                number, shown_text(piece)));
  }
  return found->second;
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text) const {
  check_utf8(text);
  EncodeState state{{}, BpeMerger(merges_), {}, {}};
  for (const SplitPattern& pattern : patterns_) state.matchers.emplace_back(pattern);
  const auto push_token = [&](int32_t id) { state.tokens.push_back(id); };
  raw_tokens_.split(
      text,
      [&](std::string_view part) {
        std::string normalized;
        if (normalize_nfc_) {
          normalized = to_nfc(part);
          part = normalized;
        }
        normalized_tokens_.split(
            part, [&](std::string_view rest) { encode_text(rest, 0, state); }, push_token);
      },
      push_token);
  return std::move(state.tokens);
}

// Splits by pattern number `pattern` and those after it.
void BpeTokenizer::encode_text(std::string_view text, size_t pattern, EncodeState& state) const {
  if (pattern == patterns_.size()) {
    encode_word(text, state);
    return;
  }
  state.matchers[pattern].split(
      text, [&](std::string_view piece) { encode_text(piece, pattern + 1, state); });
}

void BpeTokenizer::encode_word(std::string_view word, EncodeState& state) const {
  if (!word_ids_.empty()) {
    const auto found = word_ids_.find(std::string(word));
    if (found != word_ids_.end()) {
      state.tokens.push_back(found->second);
      return;
    }
  }
  state.symbols.clear();
  for (const char byte : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id >= 0) state.symbols.push_back(id);
  }
  state.merger.merge(state.symbols, state.tokens);
}

std::string BpeTokenizer::decode(std::span<const int32_t> tokens, bool skip_special_tokens) const {
  std::string bytes;
  bool at_start = true;
  for (const int32_t token : tokens) bytes += token_bytes(token, skip_special_tokens, at_start);
  return replace_invalid_utf8(bytes);
}

std::string BpeTokenizer::token_bytes(int32_t token, bool skip_special_tokens,
                                      bool& at_start) const {
  at_start = false;
  if (token < 0 || static_cast<size_t>(token) >= tokens_.size()) return "";
  const Token& entry = tokens_[static_cast<size_t>(token)];
  return skip_special_tokens && entry.is_special ? "" : entry.bytes;
}

std::optional<int32_t> BpeTokenizer::token_to_id(std::string_view piece) const {
  const auto found = piece_ids_.find(std::string(piece));
  return found == piece_ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

// The eos_token of tokenizer_config.json: a string, or an object with its content; "" when there is
// none.
std::string configured_eos_token(const std::filesystem::path& path) {
  if (!is_present(path)) return "";
  const nlohmann::json config = read_json_file(path);
  if (!config.is_object())
    throw DataError(fmt::format("{}: holds {}, expected an object", path.string(), shown(config)));
  const auto found = config.find("eos_token");
  if (found == config.end() || found->is_null()) return "";
  const nlohmann::json content =
      found->is_object() ? found->value("content", nlohmann::json()) : *found;
  if (!content.is_string()) {
    throw DataError(fmt::format("{}: eos_token is {}, expected a string or an object with content",
                                path.string(), shown(content)));
  }
  return content.get<std::string>();
}

}  // namespace

std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::filesystem::path& path) {
  const TokenizerJson file = read_tokenizer_json(path);
  const std::string eos_token = configured_eos_token(path.parent_path() / "tokenizer_config.json");
  return std::make_unique<BpeTokenizer>(file, path.string(), eos_token);
}

}  // namespace grpo::model
