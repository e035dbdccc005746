// ModelSource: what policy.model_name names, opened: sizes, and weights from a directory or from random draws.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "model/model_config.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"
#include "rl/run_config.h"

namespace grpo::rl {

struct ModelSource {
  model::ModelConfig config;
  std::unique_ptr<model::WeightsDirectory> weights;  // null: random weights
};

// A Hugging Face directory, a preset, or "custom". `tokenizer` supplies the vocabulary size where the config leaves it
// to it. Throws ConfigError or DataError; the tokenizer's vocabulary must fit the model's.
ModelSource open_model(const PolicyConfig& policy, const model::Tokenizer& tokenizer);

// A Hugging Face directory alone, without a tokenizer.
ModelSource open_model_directory(const std::filesystem::path& directory);

// The compute dtype: policy.precision, else the weights file's, float32 without one.
DType compute_dtype(const std::optional<std::string>& precision, const ModelSource& source);

}  // namespace grpo::rl
