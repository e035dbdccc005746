#include "rl/run/run_inputs.h"

#include "model/core/config_key_error.h"
#include "rl/data/supervised_example.h"
#include "rl/models/model_source.h"

namespace grpo::rl {

namespace {

// A page holds keys and values of all layers; a tensor's bytes are counted in 64 bits.
void check_cache_bytes(const RunConfig& config, const model::ModelConfig& model) {
  constexpr double kMostBytes = 0x1p60;
  const double bytes = static_cast<double>(config.policy.generation.max_batch_size) *
                       static_cast<double>(config.policy.max_total_sequence_length) * 2.0 *
                       static_cast<double>(model.num_layers) *
                       static_cast<double>(model.kv_size()) * static_cast<double>(sizeof(float));
  if (bytes > kMostBytes) {
    throw ConfigKeyError(
        "policy.generation.max_batch_size",
        fmt::format("is {}, which takes {:.1e} bytes of KV cache; allowed: at most {:.1e}",
                    config.policy.generation.max_batch_size, bytes, kMostBytes));
  }
}

DatasetConfig limited(const RunConfig& config, DatasetConfig data) {
  const int64_t longest_prompt = config.policy.max_total_sequence_length -
                                 (config.is_sft() ? 1 : config.policy.generation.max_new_tokens);
  if (data.max_input_seq_length == 0 || data.max_input_seq_length > longest_prompt) {
    data.max_input_seq_length = longest_prompt;
  }
  if (config.is_sft()) data.answer_template = "";
  return data;
}

void check_lengths(const PromptDataset& dataset, const std::string& path, int64_t max_tokens) {
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const PromptExample& example = dataset.example(i);
    const int64_t num_tokens = supervised_example(example, 0).num_tokens();
    if (num_tokens > max_tokens) {
      throw DataError(
          fmt::format("{}:{}: the example has {} tokens with its response and end token; allowed: "
                      "policy.max_total_sequence_length, {}",
                      path, example.line, num_tokens, max_tokens));
    }
  }
}

}  // namespace

RunData load_data(const RunConfig& config, const model::Tokenizer& tokenizer) {
  RunData data{.train = PromptDataset(limited(config, config.data.train), tokenizer),
               .validation = {}};
  for (const ValidationDatasetConfig& dataset : config.data.validation) {
    data.validation.emplace_back(limited(config, dataset.dataset(config.data.train)), tokenizer);
  }
  return data;
}

void check_supervised_data(const RunConfig& config, const RunData& data,
                           const std::vector<int32_t>& stops) {
  const int64_t longest = config.policy.max_total_sequence_length;
  if (!config.is_sft() && config.warm_start.num_steps == 0) return;
  if (stops.empty()) {
    throw ConfigKeyError(
        config.is_sft() ? "algorithm" : "warm_start.num_steps",
        fmt::format("is {}, but neither the model nor the tokenizer{} gives an end token to learn",
                    config.is_sft() ? "sft" : fmt::format("{}", config.warm_start.num_steps),
                    config.is_sft() ? "" : " nor policy.generation.stop_token_ids"));
  }
  check_lengths(data.train, config.data.train.path, longest);
  for (size_t i = 0; config.is_sft() && i < data.validation.size(); ++i) {
    check_lengths(data.validation[i], config.data.validation[i].path, longest);
  }
}

void check_run_inputs(const RunConfig& config) {
  const std::unique_ptr<model::Tokenizer> tokenizer = open_tokenizer(config.policy);
  const ModelSource source = open_model(config.policy, *tokenizer);
  const std::vector<int32_t> stops =
      stop_tokens(config.policy.generation, source.config, tokenizer.get());
  if (!config.is_sft()) {
    check_cache_bytes(config, source.config);
    generation_dtype(config.policy, config.numerics,
                     compute_dtype(config.policy.precision, source));
  }
  check_supervised_data(config, load_data(config, *tokenizer), stops);
}

}  // namespace grpo::rl
