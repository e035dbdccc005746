// RunConfig: the whole configuration of a run, in NeMo-RL's nesting; `algorithm`, `parallel`,
// `numerics`, `warm_start` and `gates` are this program's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/core/config_visitor.h"
#include "parallel/layout/parallel_config.h"
#include "rl/config/numerics_config.h"
#include "rl/config/policy_config.h"
#include "rl/config/sft_config.h"
#include "rl/config/validation_config.h"
#include "rl/data/prompt_dataset.h"
#include "rl/data/reward.h"
#include "rl/objective/loss.h"
#include "rl/state/checkpointing.h"
#include "rl/state/early_stop.h"
#include "rl/state/gates.h"

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
  std::string samples = "all";
  int64_t sample_period = 1;
  std::string sample_compression = "none";

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;

  // Of a step; as many as there are for "all".
  int64_t num_recorded_samples() const;
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

}  // namespace grpo::rl
