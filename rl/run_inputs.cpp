#include "rl/run_inputs.h"

#include "model/core/config_key_error.h"
#include "rl/model_source.h"

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

}  // namespace

DatasetConfig limited_dataset(const RunConfig& config) {
  DatasetConfig data = config.data.train;
  const int64_t longest_prompt =
      config.policy.max_total_sequence_length - config.policy.generation.max_new_tokens;
  if (data.max_input_seq_length == 0 || data.max_input_seq_length > longest_prompt) {
    data.max_input_seq_length = longest_prompt;
  }
  return data;
}

void check_warm_start(const RunConfig& config, const PromptDataset& dataset,
                      const std::vector<int32_t>& stops) {
  if (config.warm_start.num_steps == 0) return;
  if (stops.empty()) {
    throw ConfigKeyError("warm_start.num_steps",
                         fmt::format("is {}, but neither the model, the tokenizer nor "
                                     "policy.generation.stop_token_ids gives an end token to learn",
                                     config.warm_start.num_steps));
  }
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const PromptExample& example = dataset.example(i);
    const auto num_tokens =
        static_cast<int64_t>(example.prompt_tokens.size() + example.response_tokens.size()) + 1;
    if (num_tokens > config.policy.max_total_sequence_length) {
      throw DataError(
          fmt::format("{}:{}: the example has {} tokens with its response and end token; allowed: "
                      "policy.max_total_sequence_length, {}",
                      config.data.train.path, example.line, num_tokens,
                      config.policy.max_total_sequence_length));
    }
  }
}

void check_run_inputs(const RunConfig& config) {
  const std::unique_ptr<model::Tokenizer> tokenizer = open_tokenizer(config.policy);
  const ModelSource source = open_model(config.policy, *tokenizer);
  const std::vector<int32_t> stops =
      stop_tokens(config.policy.generation, source.config, tokenizer.get());
  check_cache_bytes(config, source.config);
  const PromptDataset dataset(limited_dataset(config), *tokenizer);
  check_warm_start(config, dataset, stops);
}

}  // namespace grpo::rl
