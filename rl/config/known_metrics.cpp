#include "rl/config/known_metrics.h"

namespace grpo::rl {

namespace {

std::set<std::string> common_names() {
  return {"train/loss",
          "train/grad_norm",
          "train/lr",
          "train/global_valid_seqs",
          "train/global_valid_toks",
          "train/mean_prompt_length",
          "train/total_num_tokens",
          "gtp/gathers",
          "gtp/gathered_bytes",
          "gtp/reduce_scattered_bytes",
          "timing/train/total_step_time",
          "timing/train/policy_training",
          "performance/tokens_per_sec_per_gpu",
          "performance/policy_training_tokens_per_sec_per_gpu",
          "performance/samples_per_sec"};
}

std::set<std::string> grpo_names(const RunConfig& config) {
  std::set<std::string> names{"train/reward",
                              "train/advantages/mean",
                              "train/advantages/min",
                              "train/advantages/max",
                              "train/baseline_reward/pct_0",
                              "train/baseline_reward/pct_1",
                              "train/baseline_reward/pct_mixed",
                              "train/frac_reward_zero_std",
                              "train/kl_penalty",
                              "train/probs_ratio",
                              "train/probs_ratio_min",
                              "train/probs_ratio_max",
                              "train/probs_ratio_clamped",
                              "train/probs_ratio_clamped_min",
                              "train/probs_ratio_clamped_max",
                              "train/clip_ratio/low",
                              "train/clip_ratio/high",
                              "train/token_mult_prob_error",
                              "train/mismatch_count",
                              "train/mismatch_tokens_checked",
                              "train/cut_mismatch_count",
                              "train/gen_kl_error",
                              "train/policy_kl_error",
                              "train/js_divergence_error",
                              "train/sampling_importance_ratio",
                              "train/is_oob_ratio",
                              "train/approx_entropy",
                              "train/num_valid_samples",
                              "train/mean_gen_tokens_per_sample",
                              "train/max_gen_tokens_per_sample",
                              "train/truncation_rate",
                              "train/natural_termination_rate",
                              "refit/bytes",
                              "refit/remote_bytes",
                              "refit/seconds",
                              "refit/changed_elements",
                              "refit/fingerprint_ok",
                              "refit/fingerprint",
                              "timing/train/prepare_for_generation/total",
                              "timing/train/prepare_for_generation/transfer_and_update_weights",
                              "timing/train/generation",
                              "timing/train/reward_calculation",
                              "timing/train/policy_and_reference_logprobs",
                              "performance/generation_tokens_per_sec_per_gpu"};
  if (config.numerics.inject_fault != "none") names.insert("numerics/injected_fault");
  for (const RewardConfig& reward : config.env.rewards) {
    names.insert("train/rewards/" + reward.name + "/mean");
    names.insert("train/rewards/" + reward.name + "/std");
  }
  return names;
}

std::set<std::string> validation_names(const RunConfig& config) {
  std::vector<std::string> quantities{"loss"};
  if (!config.is_sft()) {
    quantities = {"accuracy", "avg_length"};
    if (config.grpo.val_num_generations_per_prompt > 1) quantities.push_back("pass_k");
  }
  std::set<std::string> names{"timing/validation/total_validation_time"};
  for (const std::string& quantity : quantities) {
    names.insert("validation/" + quantity);
    if (config.data.validation.size() < 2) continue;
    for (const ValidationDatasetConfig& dataset : config.data.validation) {
      names.insert("validation/" + dataset.name + "/" + quantity);
    }
  }
  return names;
}

std::set<std::string> memory_names(const RunConfig& config) {
  std::vector<std::string> phases{"setup", "policy_training"};
  if (!config.is_sft()) {
    phases.insert(phases.end(), {"refit", "generation", "policy_and_reference_logprobs"});
  }
  if (config.warm_start.num_steps > 0) phases.push_back("warm_start");
  if (!config.data.validation.empty()) phases.push_back("validation");
  if (config.checkpointing.enabled) phases.push_back("checkpointing");
  std::set<std::string> names;
  for (const std::string& phase : phases) {
    names.insert("memory/" + phase + "/peak_bytes");
    names.insert("memory/" + phase + "/planned_bytes");
  }
  return names;
}

}  // namespace

std::set<std::string> known_metric_names(const RunConfig& config) {
  std::set<std::string> names = common_names();
  names.merge(memory_names(config));
  if (config.checkpointing.enabled) names.insert("timing/train/checkpointing");
  if (!config.is_sft()) names.merge(grpo_names(config));
  if (!config.data.validation.empty()) names.merge(validation_names(config));
  return names;
}

}  // namespace grpo::rl
