#include "generation/generation_config.h"

#include "model/core/errors.h"

namespace grpo::generation {

void GenerationConfig::visit(ConfigVisitor& visitor) {
  visitor.field("max_new_tokens", max_new_tokens, "most tokens drawn for a completion");
  visitor.field("temperature", temperature, "divides the logits; 0 is greedy (not in training)");
  visitor.field("top_k", top_k, "keep the k most likely tokens; 0 keeps all");
  visitor.field("top_p", top_p, "keep the most likely tokens up to this mass; 1 keeps all");
  visitor.field("stop_token_ids", stop_token_ids,
                "ids that end a completion besides the model's eos");
  visitor.field("ignore_eos", ignore_eos, "draw max_new_tokens whatever comes");
  visitor.field("max_batch_size", max_batch_size, "sequences decoded together on a rank");
  visitor.field("page_size_tokens", page_size_tokens, "tokens in a page of the KV cache");
  visitor.field("prefill_chunk_tokens", prefill_chunk_tokens,
                "prompt tokens run through the model at once");
}

void GenerationConfig::validate(const ConfigVisitor& visitor) const {
  const auto at_least = [&](const char* key, int64_t value, int64_t least) {
    if (value < least || value > (int64_t{1} << 31)) {
      throw ConfigError(
          fmt::format("{} is {}; allowed: {} to 2^31", visitor.where(key), value, least));
    }
  };
  at_least("max_new_tokens", max_new_tokens, 1);
  at_least("top_k", top_k, 0);
  at_least("max_batch_size", max_batch_size, 1);
  at_least("page_size_tokens", page_size_tokens, 1);
  at_least("prefill_chunk_tokens", prefill_chunk_tokens, 1);
  if (!(temperature >= 0 && temperature <= 1e3)) {
    throw ConfigError(
        fmt::format("{} is {}; allowed: 0 to 1000", visitor.where("temperature"), temperature));
  }
  if (!(top_p > 0 && top_p <= 1)) {
    throw ConfigError(
        fmt::format("{} is {}; allowed: above 0, at most 1", visitor.where("top_p"), top_p));
  }
  for (const int64_t id : stop_token_ids) {
    if (id < 0) {
      throw ConfigError(
          fmt::format("{} holds {}; allowed: token ids", visitor.where("stop_token_ids"), id));
    }
  }
}

}  // namespace grpo::generation
