#include "rl/trainer.h"

namespace grpo::rl {

std::set<std::string> known_metric_names(const RunConfig& config) {
  std::set<std::string> names{
      "train/loss", "train/reward", "train/grad_norm", "train/lr", "train/global_valid_seqs",
      "train/global_valid_toks", "train/mean_prompt_length", "train/total_num_tokens",
      "train/advantages/mean", "train/advantages/min", "train/advantages/max",
      "train/baseline_reward/pct_0", "train/baseline_reward/pct_1",
      "train/baseline_reward/pct_mixed", "train/frac_reward_zero_std", "train/kl_penalty",
      "train/probs_ratio", "train/probs_ratio_min", "train/probs_ratio_max",
      "train/probs_ratio_clamped", "train/probs_ratio_clamped_min", "train/probs_ratio_clamped_max",
      "train/clip_ratio/low", "train/clip_ratio/high", "train/token_mult_prob_error",
      "train/mismatch_count", "train/mismatch_tokens_checked", "train/cut_mismatch_count",
      "train/gen_kl_error", "train/policy_kl_error", "train/js_divergence_error",
      "train/sampling_importance_ratio", "train/is_oob_ratio", "train/approx_entropy",
      "train/num_valid_samples", "train/mean_gen_tokens_per_sample",
      "train/max_gen_tokens_per_sample", "train/truncation_rate", "train/natural_termination_rate",
      "gtp/gathers", "gtp/gathered_bytes", "gtp/reduce_scattered_bytes", "refit/bytes",
      "refit/remote_bytes", "refit/seconds", "refit/changed_elements", "refit/fingerprint_ok",
      "refit/fingerprint", "timing/train/total_step_time",
      "timing/train/prepare_for_generation/total",
      "timing/train/prepare_for_generation/transfer_and_update_weights", "timing/train/generation",
      "timing/train/reward_calculation", "timing/train/policy_and_reference_logprobs",
      "timing/train/policy_training", "performance/tokens_per_sec_per_gpu",
      "performance/generation_tokens_per_sec_per_gpu",
      "performance/policy_training_tokens_per_sec_per_gpu", "performance/samples_per_sec"};
  if (config.checkpointing.enabled) names.insert("timing/train/checkpointing");
  std::vector<std::string> phases{"setup", "refit", "generation", "policy_and_reference_logprobs",
                                  "policy_training"};
  if (config.warm_start.num_steps > 0) phases.push_back("warm_start");
  if (config.checkpointing.enabled) phases.push_back("checkpointing");
  for (const std::string& phase : phases) {
    names.insert("memory/" + phase + "/peak_bytes");
    names.insert("memory/" + phase + "/planned_bytes");
  }
  for (const RewardConfig& reward : config.env.rewards) {
    names.insert("train/rewards/" + reward.name + "/mean");
    names.insert("train/rewards/" + reward.name + "/std");
  }
  return names;
}

}  // namespace grpo::rl
