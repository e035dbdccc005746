#include "generation/generation_config.h"

#include <algorithm>

#include "model/core/config_key_error.h"
#include "model/core/config_range.h"

namespace grpo::generation {

ops::SamplingFilter GenerationConfig::filter() const {
  return {.temperature = temperature == 0.0 ? 1.0f : static_cast<float>(temperature),
          .top_k = static_cast<int32_t>(top_k),
          .top_p = top_p,
          .max_kept_ids = static_cast<int32_t>(max_kept_ids)};
}

void GenerationConfig::visit(ConfigVisitor& visitor) {
  visit_sampling(visitor);
  visitor.field("max_kept_ids", max_kept_ids,
                "sets of tokens that top_k or top_p kept are stored for training as ids up to this "
                "size, larger ones as a threshold");
}

void GenerationConfig::visit_sampling(ConfigVisitor& visitor) {
  visitor.field("precision", precision,
                "of the generation model: float32 or bfloat16; null takes the policy's, as "
                "numerics.mode exact needs it");
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
  visitor.field("enforce_eager", enforce_eager,
                "a GPU's decode steps start kernel by kernel, not as CUDA graphs");
}

void GenerationConfig::validate(const ConfigVisitor& visitor) const {
  if (precision && *precision != "float32" && *precision != "bfloat16") {
    throw ConfigError(fmt::format("{} is '{}'; allowed: float32, bfloat16, null",
                                  visitor.where("precision"), *precision));
  }
  require_range<int64_t>(visitor, "max_new_tokens", max_new_tokens, 1, kMaxSequenceTokens);
  require_range<int64_t>(visitor, "top_k", top_k, 0, INT32_MAX);
  require_range<int64_t>(visitor, "max_kept_ids", max_kept_ids, 0, 4096);
  require_range<int64_t>(visitor, "max_batch_size", max_batch_size, 1, kMaxSequences);
  require_range<int64_t>(visitor, "page_size_tokens", page_size_tokens, 1, 65536);
  require_range<int64_t>(visitor, "prefill_chunk_tokens", prefill_chunk_tokens, 1, kMaxTokens);
  // Logits divided by less may overflow.
  require_zero_or_range(visitor, "temperature", temperature, 1e-4, 1e3);
  if (!(top_p > 0 && top_p <= 1)) {
    throw ConfigError(
        fmt::format("{} is {}; allowed: above 0, at most 1", visitor.where("top_p"), top_p));
  }
  for (const int64_t id : stop_token_ids) {
    if (id < 0 || id > INT32_MAX) {
      throw ConfigError(fmt::format("{} holds {}; allowed: token ids, 0 to {}",
                                    visitor.where("stop_token_ids"), id, INT32_MAX));
    }
  }
}

void check_cache_slots(const GenerationConfig& config, int64_t max_sequence_tokens,
                       int64_t num_sequences) {
  const int64_t pages =
      (max_sequence_tokens + config.page_size_tokens - 1) / config.page_size_tokens;
  const int64_t slots_each = pages * config.page_size_tokens;
  const int64_t most = INT32_MAX / slots_each - 1;  // one more holds the prompt at hand
  if (std::min(config.max_batch_size, num_sequences) > most) {
    throw ConfigKeyError(
        "policy.generation.max_batch_size",
        fmt::format("is {}, each sequence taking {} cache slots (up to {} tokens in pages of {}); "
                    "allowed: at most {}",
                    config.max_batch_size, slots_each, max_sequence_tokens, config.page_size_tokens,
                    most));
  }
}

}  // namespace grpo::generation
