#include "model/core/errors.h"
#include "rl/run_config.h"

namespace grpo::rl {

namespace {

// The divisors of `total` on both sides of `value`, for messages: "16 or 32".
std::string nearest_divisors(int64_t total, int64_t value) {
  int64_t below = 0;
  int64_t above = total;
  for (int64_t d = 1; d <= total; ++d) {
    if (total % d != 0) continue;
    if (d <= value) below = d;
    if (d >= value) {
      above = d;
      break;
    }
  }
  return below == 0 || below == above ? fmt::format("{}", above) : fmt::format("{} or {}", below, above);
}

}  // namespace

void resolve_mesh(parallel::ParallelConfig& p, int world_size) {
  const int64_t shard_ranks = p.tensor * p.gtp_remat;
  if (world_size % shard_ranks != 0) {
    throw ConfigError(fmt::format(
        "world size {} is not a multiple of parallel.tensor x parallel.gtp_remat = {} x {} = {}; "
        "nearest legal world sizes: {}",
        world_size, p.tensor, p.gtp_remat, shard_ranks,
        world_size < shard_ranks
            ? fmt::format("{}", shard_ranks)
            : fmt::format("{} or {}", world_size / shard_ranks * shard_ranks,
                          (world_size / shard_ranks + 1) * shard_ranks)));
  }
  const int64_t replicas = world_size / shard_ranks;
  if (p.data != 0 && p.data != replicas) {
    throw ConfigError(
        fmt::format("parallel.data is {}, but world size {} / (tensor {} x gtp_remat {}) is {}",
                    p.data, world_size, p.tensor, p.gtp_remat, replicas));
  }
  p.data = replicas;
}

void resolve(RunConfig& config, int world_size) {
  resolve_mesh(config.parallel, world_size);
  PolicyConfig& policy = config.policy;
  const int64_t sequences =
      config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt;
  if (policy.train_global_batch_size == 0) policy.train_global_batch_size = sequences;
  if (sequences % policy.train_global_batch_size != 0) {
    throw ConfigError(fmt::format(
        "policy.train_global_batch_size is {}, which does not divide the {} sequences of a step "
        "(grpo.num_prompts_per_step {} x grpo.num_generations_per_prompt {}); nearest legal values: {}",
        policy.train_global_batch_size, sequences, config.grpo.num_prompts_per_step,
        config.grpo.num_generations_per_prompt,
        nearest_divisors(sequences, policy.train_global_batch_size)));
  }
  if (policy.generation.temperature == 0.0) {
    throw ConfigError(
        "policy.generation.temperature is 0; allowed: above 0 in training (0, greedy, is for generate)");
  }
  if (policy.generation.max_new_tokens >= policy.max_total_sequence_length) {
    throw ConfigError(fmt::format(
        "policy.generation.max_new_tokens is {}; allowed: less than policy.max_total_sequence_length, {}",
        policy.generation.max_new_tokens, policy.max_total_sequence_length));
  }
  for (const auto& [key, tokens] :
       {std::pair{"train_mb_tokens", policy.sequence_packing.train_mb_tokens},
        std::pair{"logprob_mb_tokens", policy.sequence_packing.logprob_mb_tokens}}) {
    if (tokens < policy.max_total_sequence_length) {
      throw ConfigError(fmt::format(
          "policy.sequence_packing.{} is {}; allowed: at least policy.max_total_sequence_length, {}", key,
          tokens, policy.max_total_sequence_length));
    }
  }
  if (config.loss_fn.use_kl_in_reward) {
    throw ConfigError(
        "loss_fn.use_kl_in_reward is true; allowed: false, since the advantages of this program's loop take no KL "
        "penalty (loss_fn.reference_policy_kl_penalty puts it into the loss)");
  }
  if (config.env.rewards.empty()) {
    throw ConfigError("env.rewards is empty; at least one reward function is needed");
  }
  if (config.warm_start.num_steps > 0 && config.data.train.response_template.empty()) {
    throw ConfigError(
        "warm_start.num_steps is above 0, but data.train.response_template is empty: there is nothing to learn");
  }
}

std::string batch_arithmetic(const RunConfig& config, int world_size) {
  const int64_t sequences =
      config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt;
  const int64_t updates = sequences / config.policy.train_global_batch_size;
  return fmt::format(
      "{} prompts x {} samples = {} sequences a step over {} data ranks (gtp_remat {} x data {}); "
      "{} update{} of {} sequences a step; micro-batches of at most {} tokens",
      config.grpo.num_prompts_per_step, config.grpo.num_generations_per_prompt, sequences,
      world_size / config.parallel.tensor, config.parallel.gtp_remat, config.parallel.data, updates,
      updates == 1 ? "" : "s", config.policy.train_global_batch_size,
      config.policy.sequence_packing.train_mb_tokens);
}

}  // namespace grpo::rl
