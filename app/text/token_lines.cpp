#include "app/text/token_lines.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "model/core/errors.h"
#include "model/files/input_file.h"
#include "model/files/json_text.h"
#include "model/tokenizer/unicode_text.h"

namespace grpo::app {

namespace {

std::vector<int32_t> token_ids(const nlohmann::json& values, int64_t vocab_size) {
  if (!values.is_array()) {
    throw DataError(
        fmt::format("\"tokens\" is {}; allowed: a list of token ids", values.type_name()));
  }
  std::vector<int32_t> tokens;
  for (const nlohmann::json& value : values) {
    const bool is_id = value.is_number_integer() && value >= 0 && value < vocab_size;
    if (!is_id) {
      throw DataError(fmt::format("\"tokens\" holds {}; allowed: whole numbers from 0 to {}",
                                  model::shown(value), vocab_size - 1));
    }
    tokens.push_back(value.get<int32_t>());
  }
  return tokens;
}

std::vector<int32_t> tokens_of(const std::string& line, const TokenLinesOptions& options,
                               const model::Tokenizer* tokenizer) {
  model::check_utf8(line);
  const nlohmann::json object = model::parse_json(line, "the line");
  if (!object.is_object()) {
    throw DataError(fmt::format("the line is {}; a JSON object is needed", object.type_name()));
  }
  const bool has_tokens = object.contains("tokens");
  const bool has_text = object.contains(options.text_key);
  if (has_tokens == has_text) {
    throw DataError(fmt::format("the line has {} of \"tokens\" and \"{}\"; exactly one is needed",
                                has_tokens ? "both" : "neither", options.text_key));
  }
  std::vector<int32_t> tokens;
  if (has_tokens) {
    tokens = token_ids(object["tokens"], options.vocab_size);
  } else if (!object[options.text_key].is_string()) {
    throw DataError(fmt::format("\"{}\" is {}; allowed: a string", options.text_key,
                                object[options.text_key].type_name()));
  } else if (tokenizer == nullptr) {
    throw DataError(fmt::format(
        "\"{}\" needs a tokenizer, and the model directory has none; give policy.tokenizer.name",
        options.text_key));
  } else {
    tokens = tokenizer->encode(object[options.text_key].get<std::string>());
  }
  if (tokens.empty()) throw DataError("the line holds no token");
  if (static_cast<int64_t>(tokens.size()) > options.max_tokens) {
    throw DataError(
        fmt::format("the line has {} tokens; allowed: {}", tokens.size(), options.max_tokens));
  }
  return tokens;
}

}  // namespace

std::vector<std::vector<int32_t>> read_token_lines(const std::filesystem::path& path,
                                                   const TokenLinesOptions& options,
                                                   const model::Tokenizer* tokenizer) {
  std::ifstream file = model::open_input(path);
  std::vector<std::vector<int32_t>> lines;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      lines.push_back(tokens_of(line, options, tokenizer));
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}:{}: {}", path.string(), number, error.what()));
    }
  }
  if (file.bad()) throw DataError(fmt::format("{}: {}", path.string(), std::strerror(errno)));
  if (lines.empty()) throw DataError(fmt::format("{}: no line holds a JSON object", path.string()));
  return lines;
}

std::unique_ptr<model::Tokenizer> find_tokenizer(const std::string& name,
                                                 const std::filesystem::path& model_dir) {
  if (!name.empty()) return model::load_tokenizer(name);
  for (const char* file : {"tokenizer.json", "tokenizer.model"}) {
    if (model::is_present(model_dir / file)) return model::load_tokenizer(model_dir);
  }
  return nullptr;
}

}  // namespace grpo::app
