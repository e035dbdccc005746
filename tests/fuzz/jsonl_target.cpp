#include "app/text/token_lines.h"
#include "model/core/errors.h"
#include "model/files/json_text.h"
#include "model/tokenizer/byte_level.h"
#include "rl/data/prompt_dataset.h"
#include "tests/fuzz/fuzz_targets.h"

namespace grpo::fuzz {

namespace {

// A token for each byte.
std::unique_ptr<model::Tokenizer> byte_tokenizer() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab +=
        fmt::format("{}{}:{}", byte == 0 ? "" : ",",
                    model::json_string(model::byte_level_piece(static_cast<uint8_t>(byte))), byte);
  }
  const std::string text = fmt::format(
      R"({{"model":{{"type":"BPE","vocab":{{{}}},"merges":[]}},)"
      R"("pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}},)"
      R"("decoder":{{"type":"ByteLevel"}}}})",
      vocab);
  return model::load_tokenizer(scratch_file("bytes/tokenizer.json", text));
}

}  // namespace

void fuzz_jsonl(std::string_view bytes) {
  static const std::unique_ptr<model::Tokenizer> tokenizer = byte_tokenizer();
  const std::string path = scratch_file("data.jsonl", bytes);
  try {
    rl::DatasetConfig config;
    config.path = path;
    config.prompt_template = "{prompt} =";
    config.response_template = "{answer}";
    config.max_input_seq_length = 4096;
    const rl::PromptDataset dataset(config, *tokenizer);
    CHECK(dataset.size() > 0, "an empty dataset");
    for (int64_t i = 0; i < dataset.size(); ++i) {
      CHECK(dataset.example(i).index == i, "example {} says {}", i, dataset.example(i).index);
      dataset.at_position(i, 1);
    }
  } catch (const DataError&) {
  }
  try {
    const auto lines = app::read_token_lines(
        path, {.text_key = "prompt", .vocab_size = 256, .max_tokens = 4096}, tokenizer.get());
    for (const auto& tokens : lines) {
      CHECK(!tokens.empty() && tokens.size() <= 4096, "a line of {} tokens", tokens.size());
      for (const int32_t token : tokens) CHECK(token >= 0 && token < 256, "token {}", token);
    }
  } catch (const DataError&) {
  }
}

}  // namespace grpo::fuzz
