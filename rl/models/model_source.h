// ModelSource: what policy.model_name names, opened: sizes, and weights from a directory or from
// random draws.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "model/files/model_config.h"
#include "model/files/safetensors.h"
#include "model/tokenizer/tokenizer.h"
#include "rl/config/numerics_config.h"
#include "rl/config/policy_config.h"

namespace grpo::rl {

struct ModelSource {
  model::ModelConfig config;
  std::unique_ptr<model::WeightsDirectory> weights;  // null: random weights
};

// A Hugging Face directory, a preset, or "custom". `tokenizer` supplies the vocabulary size where
// the config leaves it to it. Throws ConfigError or DataError; the tokenizer's vocabulary must fit
// the model's.
ModelSource open_model(const PolicyConfig& policy, const model::Tokenizer& tokenizer);

// The tokenizer that policy.tokenizer.name names. Throws ConfigError or DataError.
std::unique_ptr<model::Tokenizer> open_tokenizer(const PolicyConfig& policy);

// What ends a completion: the model's end tokens, or the tokenizer's (which may be null) for a
// model without, and the config's. Throws ConfigError for ids outside the vocabulary.
std::vector<int32_t> stop_tokens(const generation::GenerationConfig& config,
                                 const model::ModelConfig& model,
                                 const model::Tokenizer* tokenizer);

// A Hugging Face directory alone, without a tokenizer. Throws DataError; names, shapes and dtypes
// of the weights are checked, their values when they are loaded.
ModelSource open_model_directory(const std::filesystem::path& directory);

// The compute dtype: policy.precision, else the weights file's, float32 without one.
DType compute_dtype(const std::optional<std::string>& precision, const ModelSource& source);
// The generation model's: policy.generation.precision, else the policy's. Throws ConfigError where
// exact numerics would need them to be equal.
DType generation_dtype(const PolicyConfig& policy, const NumericsConfig& numerics,
                       DType policy_dtype);

}  // namespace grpo::rl
