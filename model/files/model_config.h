// ModelConfig: the sizes of a Qwen2-style decoder, from a Hugging Face config.json or a preset.
// Plain values; the functions have no state and are thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/config_difference.h"
#include "model/core/dtype.h"

namespace grpo::model {

struct ModelConfig {
  int64_t hidden_size;
  int64_t num_layers;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t intermediate_size;  // feed-forward
  int64_t vocab_size;
  int64_t max_position_embeddings;
  double rms_norm_eps;
  double rope_theta;
  bool tie_word_embeddings;
  DType dtype;  // of the weights in the file
  std::vector<int32_t> eos_token_ids;

  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

// Bounds that the values of a model keep, whoever states them. Below the least epsilon the norm of
// a zero row is infinite in float32.
inline constexpr int64_t kHeadDimMultiple = 8;
inline constexpr double kLeastRmsNormEps = 1e-30;
inline constexpr double kLargestRopeTheta = 1e12;
// The largest value of a size, by config.json's key ("hidden_size").
int64_t largest_size(std::string_view key);

// What is wrong with the sizes (key, value, what is allowed), or nullopt: every size from 1 to a
// bound that keeps all products inside int64, num_heads a multiple of num_kv_heads, head_dim a
// multiple of 8, ids inside the vocabulary.
std::optional<std::string> find_problem(const ModelConfig& config);

// Throws DataError "where: problem". A caller whose sizes come from elsewhere than a file uses
// find_problem.
void validate(const ModelConfig& config, const std::string& where);

// Reads <directory>/config.json: the published Qwen2.5 spelling (rope_theta and torch_dtype at the
// top level) and the newer one (rope_parameters.rope_theta, dtype). generation_config.json adds
// stop ids when present. Throws DataError: file, key, value, what is allowed; other architectures
// and unsupported features (sliding window in use, rope scaling, other activations) are refused by
// name.
ModelConfig read_model_config(const std::filesystem::path& directory);

// The first field that differs, by its key in config.json, with both values; nullopt for equal
// ones.
std::optional<ConfigDifference> find_difference(const ModelConfig& a, const ModelConfig& b);

// Writes config.json in the published spelling, readable by transformers and by read_model_config.
void write_model_config(const ModelConfig& config, const std::filesystem::path& directory);

// "qwen2.5-0.5b", "-1.5b", "-3b", "-7b": the published sizes; nullopt for other names.
std::optional<ModelConfig> preset_model_config(const std::string& name);
std::vector<std::string> preset_names();

}  // namespace grpo::model
