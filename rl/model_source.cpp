#include "rl/model_source.h"

#include <fmt/ranges.h>

#include "model/core/errors.h"

namespace grpo::rl {

namespace {

model::ModelConfig custom_config(const ModelSizesConfig& sizes, const model::Tokenizer& tokenizer) {
  const int64_t heads = sizes.num_attention_heads;
  if (heads < 1 || sizes.hidden_size < 1 || sizes.hidden_size % heads != 0) {
    throw ConfigError(fmt::format(
        "policy.model.hidden_size is {} with num_attention_heads {}; allowed: a positive multiple of it",
        sizes.hidden_size, heads));
  }
  model::ModelConfig config{.hidden_size = sizes.hidden_size,
                            .num_layers = sizes.num_hidden_layers,
                            .num_heads = heads,
                            .num_kv_heads = sizes.num_key_value_heads,
                            .head_dim = sizes.hidden_size / heads,
                            .intermediate_size = sizes.intermediate_size,
                            .vocab_size = sizes.vocab_size == 0 ? tokenizer.vocab_size()
                                                                : sizes.vocab_size,
                            .max_position_embeddings = sizes.max_position_embeddings,
                            .rms_norm_eps = sizes.rms_norm_eps,
                            .rope_theta = sizes.rope_theta,
                            .tie_word_embeddings = sizes.tie_word_embeddings,
                            .dtype = DType::kFloat32,
                            .eos_token_ids = {}};
  if (tokenizer.eos_token_id()) config.eos_token_ids.push_back(*tokenizer.eos_token_id());
  try {
    model::validate(config, "policy.model");
  } catch (const DataError& error) {
    throw ConfigError(error.what());
  }
  return config;
}

}  // namespace

ModelSource open_model_directory(const std::filesystem::path& directory) {
  return {.config = model::read_model_config(directory),
          .weights = std::make_unique<model::WeightsDirectory>(directory)};
}

ModelSource open_model(const PolicyConfig& policy, const model::Tokenizer& tokenizer) {
  ModelSource source;
  if (policy.model_name == "custom") {
    source.config = custom_config(policy.model, tokenizer);
  } else if (const auto preset = model::preset_model_config(policy.model_name)) {
    source.config = *preset;
    source.config.dtype = DType::kFloat32;
  } else {
    if (!std::filesystem::exists(policy.model_name)) {
      throw ConfigError(fmt::format(
          "policy.model_name is '{}', which is no folder; allowed: a Hugging Face directory, {}, custom",
          policy.model_name, fmt::join(model::preset_names(), ", ")));
    }
    source = open_model_directory(policy.model_name);
  }
  if (tokenizer.vocab_size() > source.config.vocab_size) {
    throw ConfigError(fmt::format("the tokenizer has {} entries, the model's vocabulary {}; allowed: at most that",
                                  tokenizer.vocab_size(), source.config.vocab_size));
  }
  if (policy.max_total_sequence_length > source.config.max_position_embeddings) {
    throw ConfigError(fmt::format(
        "policy.max_total_sequence_length is {}; allowed: at most the model's max_position_embeddings, {}",
        policy.max_total_sequence_length, source.config.max_position_embeddings));
  }
  return source;
}

DType compute_dtype(const std::optional<std::string>& precision, const ModelSource& source) {
  if (precision) return *precision == "bfloat16" ? DType::kBfloat16 : DType::kFloat32;
  return source.config.dtype;
}

}  // namespace grpo::rl
