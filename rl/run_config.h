// RunConfig: the whole configuration of a run, in NeMo-RL's nesting; `algorithm`, `parallel`,
// `numerics`, `warm_start` and `gates` are this program's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generation/generation_config.h"
#include "generation/injected_fault.h"
#include "model/core/config_visitor.h"
#include "model/ops/op_context.h"
#include "parallel/parallel_config.h"
#include "rl/checkpointing.h"
#include "rl/early_stop.h"
#include "rl/gates.h"
#include "rl/loss.h"
#include "rl/lr_schedule.h"
#include "rl/prompt_dataset.h"
#include "rl/reward.h"
#include "rl/sft_config.h"
#include "rl/validation_config.h"
#include "rl/work_division.h"

namespace grpo::rl {

struct GrpoConfig {
  int64_t num_prompts_per_step = 8;
  int64_t num_generations_per_prompt = 4;
  int64_t max_num_steps = 10;
  bool normalize_rewards = true;
  bool use_leave_one_out_baseline = true;
  int64_t seed = 42;
  ValidationPeriods validation;
  int64_t max_val_samples = 256;
  int64_t val_batch_size = 256;
  int64_t val_num_generations_per_prompt = 1;
  EarlyStopConfig early_stop;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

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

struct DataConfig {
  DatasetConfig train;
  std::vector<ValidationDatasetConfig> validation;

  void visit(ConfigVisitor& visitor);
};

struct EnvConfig {
  std::vector<RewardConfig> rewards;

  void visit(ConfigVisitor& visitor);
};

// Weights of another run, and supervised steps on the dataset's responses, before the first step;
// the reference policy is taken after.
struct WarmStartConfig {
  std::string checkpoint{};
  int64_t num_steps = 0;
  int64_t global_batch_size = 32;
  double lr = 1e-3;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

struct LoggerConfig {
  std::string log_dir = "runs/default";
  bool overwrite = false;
  int64_t console_period = 1;
  int64_t num_samples_to_print = 2;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

struct NumericsConfig {
  std::string mode = "exact";
  std::string inject_fault = "none";

  void visit(ConfigVisitor& visitor);
  // What is left of it where nothing trains.
  void visit_mode(ConfigVisitor& visitor);

  bool is_exact() const { return mode == "exact"; }
  generation::InjectedFault fault() const { return generation::injected_fault_named(inject_fault); }
  // For the contexts of all operators; a fault changes the engine's own.
  Numerics operators() const {
    return {.split_k = is_exact() ? SplitK::kNever : SplitK::kAllowed, .narrow_kv_tiles = false};
  }
};

struct RunConfig {
  std::string algorithm = "grpo";
  GrpoConfig grpo;
  SftConfig sft;
  LossConfig loss_fn;
  PolicyConfig policy;
  DataConfig data;
  EnvConfig env;
  WarmStartConfig warm_start;
  CheckpointingConfig checkpointing;
  LoggerConfig logger;
  parallel::ParallelConfig parallel;
  NumericsConfig numerics;
  std::vector<GateConfig> gates;

  void visit(ConfigVisitor& visitor);
  // The loss has a KL term, which needs the log-probabilities of a frozen reference.
  bool needs_reference() const { return !is_sft() && loss_fn.reference_policy_kl_penalty != 0.0; }

  // Of the algorithm's own section.
  bool is_sft() const { return algorithm == "sft"; }
  int64_t seed() const { return is_sft() ? sft.seed : grpo.seed; }
  int64_t max_num_steps() const { return is_sft() ? sft.max_num_steps : grpo.max_num_steps; }
  const ValidationPeriods& validation_periods() const {
    return is_sft() ? sft.validation : grpo.validation;
  }
  const EarlyStopConfig& early_stop() const { return is_sft() ? sft.early_stop : grpo.early_stop; }
};

// Rules between sections, checked once after reading; messages name the keys. Fills what 0 or null
// derives from other keys (policy.train_global_batch_size, parallel.data), so that the resolved
// config states it.
void resolve(RunConfig& config, int world_size);

// Fills parallel.data from the world size. Throws ConfigError when the axes do not multiply to it.
void resolve_mesh(parallel::ParallelConfig& config, int world_size);

// "8 prompts x 4 samples = 32 sequences a step, 2 data ranks, 1 update of 32 sequences a step, ..."
std::string batch_arithmetic(const RunConfig& config, int world_size);

}  // namespace grpo::rl
