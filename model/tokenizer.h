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
  // Ids outside the vocabulary, and with skip_special_tokens control tokens, give no text.
  virtual std::string decode(std::span<const int32_t> tokens, bool skip_special_tokens) const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int32_t> eos_token_id() const = 0;
  // Id of exactly this piece (a special token's text), if there is one.
  virtual std::optional<int32_t> token_to_id(std::string_view piece) const = 0;
};

// From a SentencePiece .model file, a tokenizer.json, or a directory that holds tokenizer.json or tokenizer.model.
// Throws DataError naming the path and what was expected.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

}  // namespace grpo::model
