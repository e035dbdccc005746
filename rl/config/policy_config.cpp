#include "rl/config/policy_config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "model/core/config_range.h"
#include "model/core/errors.h"
#include "model/files/model_config.h"

namespace grpo::rl {

namespace {

constexpr double kMaxLearningRate = 1e3;
constexpr int64_t kMaxMicroBatchMultiple = 4096;

}  // namespace

void ModelSizesConfig::visit(ConfigVisitor& visitor) {
  visitor.field("hidden_size", hidden_size, "width of the residual stream");
  visitor.field("num_hidden_layers", num_hidden_layers, "decoder layers");
  visitor.field("num_attention_heads", num_attention_heads, "query heads");
  visitor.field("num_key_value_heads", num_key_value_heads, "key/value heads");
  visitor.field("intermediate_size", intermediate_size, "feed-forward width");
  visitor.field("vocab_size", vocab_size, "rows of the embedding; 0 takes the tokenizer's");
  visitor.field("max_position_embeddings", max_position_embeddings, "longest sequence");
  visitor.field("rms_norm_eps", rms_norm_eps, "added to the mean square");
  visitor.field("rope_theta", rope_theta, "base of the rotary frequencies");
  visitor.field("tie_word_embeddings", tie_word_embeddings, "the LM head is the embedding");
}

void ModelSizesConfig::validate(const ConfigVisitor& visitor) const {
  for (const auto& [key, value] :
       {std::pair{"hidden_size", hidden_size}, std::pair{"num_hidden_layers", num_hidden_layers},
        std::pair{"num_attention_heads", num_attention_heads},
        std::pair{"num_key_value_heads", num_key_value_heads},
        std::pair{"intermediate_size", intermediate_size},
        std::pair{"max_position_embeddings", max_position_embeddings}}) {
    require_range<int64_t>(visitor, key, value, 1, model::largest_size(key));
  }
  require_range<int64_t>(visitor, "vocab_size", vocab_size, 0, model::largest_size("vocab_size"));
  const auto require = [&](bool ok, const char* key, int64_t value, const std::string& allowed) {
    if (!ok) {
      throw ConfigError(fmt::format("{} is {}; allowed: {}", visitor.where(key), value, allowed));
    }
  };
  require(hidden_size % num_attention_heads == 0, "hidden_size", hidden_size,
          fmt::format("a multiple of num_attention_heads, {}", num_attention_heads));
  require(hidden_size / num_attention_heads % model::kHeadDimMultiple == 0, "hidden_size",
          hidden_size,
          fmt::format("a multiple of {} x num_attention_heads, {}", model::kHeadDimMultiple,
                      model::kHeadDimMultiple * num_attention_heads));
  require(hidden_size / num_attention_heads <= model::largest_size("head_dim"), "hidden_size",
          hidden_size,
          fmt::format("at most {} x num_attention_heads, {}", model::largest_size("head_dim"),
                      model::largest_size("head_dim") * num_attention_heads));
  require(num_attention_heads % num_key_value_heads == 0, "num_key_value_heads",
          num_key_value_heads,
          fmt::format("a divisor of num_attention_heads, {}", num_attention_heads));
  require_range(visitor, "rms_norm_eps", rms_norm_eps, model::kLeastRmsNormEps, 1.0);
  require_range(visitor, "rope_theta", rope_theta, 1.0, model::kLargestRopeTheta);
}

void OptimizerKwargs::visit(ConfigVisitor& visitor) {
  visitor.field("lr", lr, "base learning rate");
  visitor.field("weight_decay", weight_decay,
                "decoupled decay of matrices (norms and biases have none)");
  visitor.field("betas", betas, "AdamW's two moment factors");
  visitor.field("eps", eps, "AdamW's denominator term");
}

void OptimizerKwargs::validate(const ConfigVisitor& visitor) const {
  require_range(visitor, "lr", lr, 0.0, kMaxLearningRate);
  require_range(visitor, "weight_decay", weight_decay, 0.0, 1e3);
  // Elements without a gradient divide 0 by this.
  require_range(visitor, "eps", eps, 1e-30, 1.0);
  constexpr double kLargestBeta = 0.9999999;  // 1 minus it is not 0 in float32
  const bool good = betas.size() == 2 && std::all_of(betas.begin(), betas.end(), [](double b) {
                      return b >= 0 && b <= kLargestBeta;
                    });
  if (!good) {
    throw ConfigError(fmt::format("{} is [{}]; allowed: two numbers, each 0 to {}",
                                  visitor.where("betas"), fmt::join(betas, ", "), kLargestBeta));
  }
}

void OptimizerConfig::visit(ConfigVisitor& visitor) {
  visitor.choice("name", name, {"adamw", "sgd"}, "the optimizer");
  visit_section(visitor, "kwargs", "its settings", kwargs);
}

void SequencePackingConfig::visit(ConfigVisitor& visitor) {
  visitor.field("train_mb_tokens", train_mb_tokens, "tokens in a training micro-batch, at most");
  visitor.field("train_mb_multiple", train_mb_multiple,
                "training micro-batches are opened by multiples of this: gradients have the same "
                "bits at every gtp_remat up to it");
  visit_scoring(visitor);
}

void SequencePackingConfig::visit_scoring(ConfigVisitor& visitor) {
  visitor.field("logprob_mb_tokens", logprob_mb_tokens, "tokens in a scoring micro-batch, at most");
  visitor.field("logprob_chunk_tokens", logprob_chunk_tokens,
                "rows of logits that exist at once in the LM head");
}

void SequencePackingConfig::validate(const ConfigVisitor& visitor) const {
  require_range<int64_t>(visitor, "train_mb_tokens", train_mb_tokens, 1, kMaxTokens);
  require_range<int64_t>(visitor, "train_mb_multiple", train_mb_multiple, 1,
                         kMaxMicroBatchMultiple);
  require_range<int64_t>(visitor, "logprob_mb_tokens", logprob_mb_tokens, 1, kMaxTokens);
  require_range<int64_t>(visitor, "logprob_chunk_tokens", logprob_chunk_tokens, 1, kMaxTokens);
}

void TokenizerConfig::visit(ConfigVisitor& visitor) {
  visitor.field("name", name, "SentencePiece .model, tokenizer.json, or a directory with one");
}

void PolicyConfig::visit(ConfigVisitor& visitor) {
  visitor.field("model_name", model_name,
                "Hugging Face directory, a preset (qwen2.5-0.5b, -1.5b, -3b, -7b), or custom");
  visit_section(visitor, "model", "sizes for model_name custom", model);
  visit_section(visitor, "tokenizer", "text to tokens", tokenizer);
  visitor.field("precision", precision,
                "float32 or bfloat16; null takes the weights file's dtype, float32 without a file");
  visitor.field("init_std", init_std, "standard deviation of random weights");
  visitor.field("train_global_batch_size", train_global_batch_size,
                "sequences an update; 0 takes all of a step's (sft: examples a step, at least 1)");
  visitor.field("max_total_sequence_length", max_total_sequence_length,
                "longest prompt plus response, in tokens");
  visit_section(visitor, "sequence_packing", "micro-batches by tokens", sequence_packing);
  visitor.field("max_grad_norm", max_grad_norm,
                "clip the global gradient norm to this; 0 does not clip");
  visit_section(visitor, "optimizer", "how weights are updated", optimizer);
  visit_section(visitor, "scheduler", "learning rate over the run", scheduler);
  visit_section(visitor, "generation", "how completions are drawn", generation);
}

void PolicyConfig::validate(const ConfigVisitor& visitor) const {
  if (model_name.empty()) {
    throw ConfigError(fmt::format(
        "{} is missing; allowed: a Hugging Face directory, a preset (qwen2.5-0.5b, ...) or custom",
        visitor.where("model_name")));
  }
  if (precision && *precision != "float32" && *precision != "bfloat16") {
    throw ConfigError(fmt::format("{} is '{}'; allowed: float32, bfloat16, null",
                                  visitor.where("precision"), *precision));
  }
  require_range(visitor, "init_std", init_std, 0.0, 10.0);
  require_range<int64_t>(visitor, "train_global_batch_size", train_global_batch_size, 0,
                         kMaxSequences);
  require_range<int64_t>(visitor, "max_total_sequence_length", max_total_sequence_length, 2,
                         kMaxSequenceTokens);
  require_range(visitor, "max_grad_norm", max_grad_norm, 0.0, 1e9);
}

}  // namespace grpo::rl
