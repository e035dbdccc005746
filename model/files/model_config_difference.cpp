#include <fmt/ranges.h>

#include "model/core/errors.h"
#include "model/files/model_config.h"

namespace grpo::model {

std::optional<ConfigDifference> find_difference(const ModelConfig& a, const ModelConfig& b) {
  std::optional<ConfigDifference> found;
  const auto compare = [&](const char* key, const auto& x, const auto& y) {
    if (!found && x != y) found = {key, fmt::format("{}", x), fmt::format("{}", y)};
  };
  // Layers and widths first: they explain the others.
  compare("num_hidden_layers", a.num_layers, b.num_layers);
  compare("hidden_size", a.hidden_size, b.hidden_size);
  compare("num_attention_heads", a.num_heads, b.num_heads);
  compare("num_key_value_heads", a.num_kv_heads, b.num_kv_heads);
  compare("head_dim", a.head_dim, b.head_dim);
  compare("intermediate_size", a.intermediate_size, b.intermediate_size);
  compare("vocab_size", a.vocab_size, b.vocab_size);
  compare("max_position_embeddings", a.max_position_embeddings, b.max_position_embeddings);
  compare("rms_norm_eps", a.rms_norm_eps, b.rms_norm_eps);
  compare("rope_theta", a.rope_theta, b.rope_theta);
  compare("tie_word_embeddings", a.tie_word_embeddings, b.tie_word_embeddings);
  compare("torch_dtype", dtype_name(a.dtype), dtype_name(b.dtype));
  compare("eos_token_id", a.eos_token_ids, b.eos_token_ids);
  return found;
}

}  // namespace grpo::model
