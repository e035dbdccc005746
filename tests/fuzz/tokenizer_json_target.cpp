#include "model/core/errors.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_targets.h"

namespace grpo::fuzz {

void fuzz_tokenizer_json(std::string_view bytes) {
  const auto [file, given_text] = two_texts(bytes);
  const std::string path = scratch_file("tokenizer/tokenizer.json", file);
  try {
    const auto tokenizer = model::load_tokenizer(path);
    const std::string text = given_text.empty() ? "Hello  w\xC3\xB6rld 12+34=\n\n<|im_end|> it's"
                                                : std::string(given_text);
    const std::vector<int32_t> tokens = tokenizer->encode(text);
    for (const int32_t token : tokens) {
      CHECK(token >= 0 && token < tokenizer->vocab_size(), "token {} of {}", token,
            tokenizer->vocab_size());
    }
    // Token by token is as the whole.
    const std::string whole = tokenizer->decode(tokens, false);
    model::IncrementalDecoder decoder(*tokenizer, false);
    std::string pieces;
    for (const int32_t token : tokens) pieces += decoder.push(token);
    pieces += decoder.finish();
    CHECK(pieces == whole, "incremental decoding differs");
    tokenizer->decode(tokens, true);
  } catch (const DataError&) {
  }
}

}  // namespace grpo::fuzz
