// The model's and the tokenizer's files inside a checkpoint.
#pragma once

#include <filesystem>

#include "model/files/model_config.h"

namespace grpo::rl {

// What a checkpoint holds beside tensors and state: the model's config.json and the tokenizer's
// files.
void write_model_files(const std::filesystem::path& folder, const model::ModelConfig& model,
                       const std::filesystem::path& tokenizer);
// Throws DataError (what differs, both values) for a checkpoint with another model or tokenizer
// than the run's.
void check_model_files(const std::filesystem::path& folder, const model::ModelConfig& model,
                       const std::filesystem::path& tokenizer);

}  // namespace grpo::rl
