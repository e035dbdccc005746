#include "model/tokenizer/tokenizer.h"

#include <algorithm>

#include "model/core/errors.h"
#include "model/files/input_file.h"
#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/sentencepiece_tokenizer.h"
#include "model/tokenizer/unicode_text.h"

namespace grpo::model {

std::string Tokenizer::token_bytes(int32_t token, bool skip_special_tokens, bool& at_start) const {
  at_start = false;
  return decode(std::span(&token, 1), skip_special_tokens);
}

std::string IncrementalDecoder::push(int32_t token) {
  pending_ += tokenizer_.token_bytes(token, skip_special_tokens_, at_start_);
  // Only the last character can be unfinished, and it began at most three bytes before the end.
  size_t certain = pending_.size();
  for (size_t position = pending_.size() - std::min<size_t>(pending_.size(), 3);
       position < pending_.size(); ++position) {
    if (utf8_step(pending_, position).status == Utf8Status::kIncomplete) {
      certain = position;
      break;
    }
  }
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
  return text;
}

std::string IncrementalDecoder::finish() {
  std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  at_start_ = true;
  return text;
}

namespace {

// The tokenizer's own file.
std::filesystem::path main_file(const std::filesystem::path& path) {
  if (!is_folder(path)) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (is_present(path / name)) return path / name;
  }
  throw DataError(
      fmt::format("{}: holds neither tokenizer.json nor tokenizer.model", path.string()));
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path) {
  const std::filesystem::path file = main_file(path);
  if (file.extension() == ".json") return load_bpe_tokenizer(file);
  return load_sentencepiece_tokenizer(file);
}

std::vector<TokenizerFile> tokenizer_files(const std::filesystem::path& path) {
  const std::filesystem::path file = main_file(path);
  if (file.extension() != ".json") return {{file, "tokenizer.model"}};
  std::vector<TokenizerFile> files{{file, "tokenizer.json"}};
  const std::filesystem::path config = file.parent_path() / "tokenizer_config.json";
  if (is_present(config)) files.push_back({config, "tokenizer_config.json"});
  return files;
}

}  // namespace grpo::model
