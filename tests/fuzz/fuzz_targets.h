// One function a kind of file that strangers write. Each takes any bytes and may throw nothing but
// ConfigError and DataError, which it swallows: whatever else leaves it is a defect, as are a
// sanitizer's finding, a hang and unbounded memory. One thread.
//
// Texts that cannot hold a byte 0xFF (JSON, YAML) are the input up to its first one; what follows
// is a second text.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace grpo::fuzz {

void fuzz_safetensors(std::string_view bytes);     // model.safetensors
void fuzz_tokenizer_json(std::string_view bytes);  // tokenizer.json, then a text to encode
void fuzz_yaml_config(std::string_view bytes);     // a run's config, then overrides, one a line
void fuzz_jsonl(std::string_view bytes);           // prompts and token lines
void fuzz_model_config(std::string_view bytes);    // config.json, then generation_config.json

// A folder of this process, removed at its end.
const std::string& scratch_folder();
// Writes a file of it; its path.
std::string scratch_file(const std::string& name, std::string_view bytes);

inline std::pair<std::string_view, std::string_view> two_texts(std::string_view bytes) {
  const size_t border = bytes.find('\xFF');
  if (border == std::string_view::npos) return {bytes, {}};
  return {bytes.substr(0, border), bytes.substr(border + 1)};
}

}  // namespace grpo::fuzz
