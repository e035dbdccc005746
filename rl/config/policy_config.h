// PolicyConfig: the trained model: its source, precision, optimizer, batches and generation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generation/generation_config.h"
#include "model/core/config_visitor.h"
#include "rl/data/work_division.h"
#include "rl/objective/lr_schedule.h"

namespace grpo::rl {

// Sizes of a model with random weights, when model_name is "custom".
struct ModelSizesConfig {
  int64_t hidden_size = 64;
  int64_t num_hidden_layers = 2;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 2;
  int64_t intermediate_size = 128;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 1024;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = true;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

struct OptimizerKwargs {
  double lr = 1e-6;
  double weight_decay = 0.01;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

struct OptimizerConfig {
  std::string name = "adamw";
  OptimizerKwargs kwargs;

  void visit(ConfigVisitor& visitor);
};

struct SequencePackingConfig {
  int64_t train_mb_tokens = 4096;
  int64_t train_mb_multiple = 2;
  int64_t logprob_mb_tokens = 4096;
  int64_t logprob_chunk_tokens = 1024;

  MicroBatchRule training() const {
    return {.max_tokens = train_mb_tokens, .multiple = train_mb_multiple};
  }
  void visit(ConfigVisitor& visitor);
  // Without the keys of training.
  void visit_scoring(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

struct TokenizerConfig {
  std::string name;

  void visit(ConfigVisitor& visitor);
};

struct PolicyConfig {
  std::string model_name;  // Hugging Face directory, preset, or "custom" with `model`
  ModelSizesConfig model;
  TokenizerConfig tokenizer;
  std::optional<std::string>
      precision;  // null: the weights file's dtype (float32 for random weights)
  double init_std = 0.02;
  int64_t train_global_batch_size = 0;
  int64_t max_total_sequence_length = 1024;
  SequencePackingConfig sequence_packing;
  double max_grad_norm = 1.0;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  generation::GenerationConfig generation;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

}  // namespace grpo::rl
