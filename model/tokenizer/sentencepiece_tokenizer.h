// SentencePiece models (.model files), through libsentencepiece.
#pragma once

#include <filesystem>
#include <memory>

#include "model/tokenizer/tokenizer.h"

namespace grpo::model {

// Throws DataError (path, the library's reason) for a file that is missing, damaged or not such a
// model.
std::unique_ptr<Tokenizer> load_sentencepiece_tokenizer(const std::filesystem::path& path);

}  // namespace grpo::model
