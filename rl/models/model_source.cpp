#include "rl/models/model_source.h"

#include <fmt/ranges.h>

#include "model/core/config_key_error.h"
#include "model/files/input_file.h"
#include "model/transformer_parameters.h"
#include "parallel/checkpoint/weights_io.h"

namespace grpo::rl {

namespace {

// Of a validated precision.
DType dtype_named(const std::string& precision) {
  return precision == "bfloat16" ? DType::kBfloat16 : DType::kFloat32;
}

model::ModelConfig custom_config(const ModelSizesConfig& sizes, const model::Tokenizer& tokenizer) {
  const int64_t heads = sizes.num_attention_heads;
  CHECK(heads >= 1 && sizes.hidden_size % heads == 0, "hidden_size {} of {} heads",
        sizes.hidden_size,
        heads);  // validate() refuses others
  model::ModelConfig config{
      .hidden_size = sizes.hidden_size,
      .num_layers = sizes.num_hidden_layers,
      .num_heads = heads,
      .num_kv_heads = sizes.num_key_value_heads,
      .head_dim = sizes.hidden_size / heads,
      .intermediate_size = sizes.intermediate_size,
      .vocab_size = sizes.vocab_size == 0 ? tokenizer.vocab_size() : sizes.vocab_size,
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
  ModelSource source{.config = model::read_model_config(directory),
                     .weights = std::make_unique<model::WeightsDirectory>(directory)};
  // Before anything is allocated for the sizes that config.json states.
  parallel::check_weights(model::make_transformer_parameters(source.config, 0.0f).specs,
                          *source.weights);
  return source;
}

ModelSource open_model(const PolicyConfig& policy, const model::Tokenizer& tokenizer) {
  ModelSource source;
  if (policy.model_name == "custom") {
    source.config = custom_config(policy.model, tokenizer);
  } else if (const auto preset = model::preset_model_config(policy.model_name)) {
    source.config = *preset;
    source.config.dtype = DType::kFloat32;
  } else {
    if (!model::is_folder(policy.model_name)) {
      throw ConfigKeyError(
          "policy.model_name",
          fmt::format("is '{}', which is no folder; allowed: a Hugging Face directory, "
                      "{}, custom",
                      policy.model_name, fmt::join(model::preset_names(), ", ")));
    }
    source = open_model_directory(policy.model_name);
  }
  if (tokenizer.vocab_size() > source.config.vocab_size) {
    throw ConfigKeyError(
        "policy.tokenizer.name",
        fmt::format("is '{}' with {} entries; allowed: at most the model's vocab_size, {}",
                    policy.tokenizer.name, tokenizer.vocab_size(), source.config.vocab_size));
  }
  if (policy.max_total_sequence_length > source.config.max_position_embeddings) {
    throw ConfigKeyError(
        "policy.max_total_sequence_length",
        fmt::format("is {}; allowed: at most the model's max_position_embeddings, {}",
                    policy.max_total_sequence_length, source.config.max_position_embeddings));
  }
  return source;
}

std::unique_ptr<model::Tokenizer> open_tokenizer(const PolicyConfig& policy) {
  if (policy.tokenizer.name.empty()) {
    throw ConfigKeyError(
        "policy.tokenizer.name",
        "is empty; allowed: a SentencePiece .model, a tokenizer.json, or a directory "
        "with one");
  }
  return model::load_tokenizer(policy.tokenizer.name);
}

std::vector<int32_t> stop_tokens(const generation::GenerationConfig& config,
                                 const model::ModelConfig& model,
                                 const model::Tokenizer* tokenizer) {
  std::vector<int32_t> stops = model.eos_token_ids;
  if (stops.empty() && tokenizer != nullptr && tokenizer->eos_token_id()) {
    stops.push_back(*tokenizer->eos_token_id());
  }
  for (const int64_t id : config.stop_token_ids) {
    if (id >= model.vocab_size) {
      throw ConfigKeyError("policy.generation.stop_token_ids",
                           fmt::format("holds {}; allowed: ids below the vocabulary's size, {}", id,
                                       model.vocab_size));
    }
    stops.push_back(static_cast<int32_t>(id));
  }
  return stops;
}

DType compute_dtype(const std::optional<std::string>& precision, const ModelSource& source) {
  return precision ? dtype_named(*precision) : source.config.dtype;
}

DType generation_dtype(const PolicyConfig& policy, const NumericsConfig& numerics,
                       DType policy_dtype) {
  const std::optional<std::string>& precision = policy.generation.precision;
  if (!precision) return policy_dtype;
  const DType generation = dtype_named(*precision);
  if (numerics.is_exact() && generation != policy_dtype) {
    throw ConfigKeyError(
        "policy.generation.precision",
        fmt::format("is {}, but the policy computes in {} and numerics.mode is exact; allowed: {}, "
                    "null, or numerics.mode=fast",
                    *precision, dtype_name(policy_dtype), dtype_name(policy_dtype)));
  }
  return generation;
}

}  // namespace grpo::rl
