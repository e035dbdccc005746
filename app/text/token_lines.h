// Input lines of `score` and `generate`: JSON objects that hold token ids, or text to tokenize.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/files/model_config.h"
#include "model/tokenizer/tokenizer.h"

namespace grpo::app {

struct TokenLinesOptions {
  std::string text_key;  // "text" or "prompt"
  int64_t vocab_size;
  int64_t max_tokens;
};

// Every line's tokens, in order. Throws DataError with file and line: not JSON, neither "tokens"
// nor the text key, or both, no tokens, ids outside the vocabulary, more tokens than allowed, text
// without a tokenizer, no line at all.
std::vector<std::vector<int32_t>> read_token_lines(const std::filesystem::path& path,
                                                   const TokenLinesOptions& options,
                                                   const model::Tokenizer* tokenizer);

// The tokenizer that `name` says, or the model directory's own; null when there is none.
std::unique_ptr<model::Tokenizer> find_tokenizer(const std::string& name,
                                                 const std::filesystem::path& model_dir);

}  // namespace grpo::app
