// What a tokenizer.json of a byte-level BPE tokenizer says, checked but not yet compiled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer/added_tokens.h"

namespace grpo::model {

struct TokenizerJson {
  std::vector<AddedToken> added_tokens;
  bool normalize_nfc = false;
  std::vector<std::string>
      split_patterns;              // applied one after the other to what the one before left
  bool ignore_merges = false;      // a word that is a token is not taken apart
  bool has_unknown_token = false;  // the model has one; never needed when every byte has a token
  std::vector<std::pair<std::string, int32_t>> vocab;       // pieces in the byte-level alphabet
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
};

// Throws DataError (path, key, value, what is supported) for a file that is malformed, is not
// byte-level BPE, or uses a normalizer, pre-tokenizer, decoder or option that this program does not
// implement.
TokenizerJson read_tokenizer_json(const std::filesystem::path& path);

}  // namespace grpo::model
