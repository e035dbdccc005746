// Byte-level byte-pair encoding as the tokenizers library does it, from a tokenizer.json.
#pragma once

#include <filesystem>
#include <memory>

#include "model/tokenizer/tokenizer.h"

namespace grpo::model {

// tokenizer_config.json beside the file names the end-of-sequence token, when both are there.
// Throws DataError (path, key, value, what is supported), see tokenizer_json.h.
std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::filesystem::path& path);

}  // namespace grpo::model
