// Tokenizer: text to token ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace grpo::model {

// Immutable after loading; thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // No beginning- or end-of-sequence token is added. Throws DataError for text that is not UTF-8.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Always UTF-8: bytes that form no character become U+FFFD. Ids outside the vocabulary, and with
  // skip_special_tokens control tokens, give no text.
  virtual std::string decode(std::span<const int32_t> tokens, bool skip_special_tokens) const = 0;
  // The bytes that one more token adds to a decoded text; they may end inside a character.
  // `at_start` starts as true and is cleared by the first token after which a leading blank is the
  // text's own. The default suits tokenizers whose tokens are whole characters.
  virtual std::string token_bytes(int32_t token, bool skip_special_tokens, bool& at_start) const;
  // 1 + the largest id.
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int32_t> eos_token_id() const = 0;
  // Id of exactly this piece (a special token's text), if there is one.
  virtual std::optional<int32_t> token_to_id(std::string_view piece) const = 0;
};

// Decodes a growing sequence without ever giving out half a character: the pieces that push() and
// finish() return join to decode() of all tokens. Keeps a reference to the tokenizer. One thread at
// a time.
class IncrementalDecoder {
 public:
  IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  std::string push(int32_t token);  // what became certain with this token
  std::string finish();             // what is left; the decoder starts afresh

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  bool at_start_ = true;
  std::string pending_;  // the bytes of an unfinished character
};

// From a SentencePiece .model file, a tokenizer.json, or a directory that holds tokenizer.json or
// tokenizer.model. Beside a tokenizer.json, tokenizer_config.json names the end-of-sequence token.
// Throws DataError naming the path and what was expected.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

// The files that load_tokenizer(path) reads.
struct TokenizerFile {
  std::filesystem::path path;
  std::string name;  // under which load_tokenizer(directory) finds a copy
};
std::vector<TokenizerFile> tokenizer_files(const std::filesystem::path& path);

}  // namespace grpo::model
