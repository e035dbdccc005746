#include "rl/config/resolve_config.h"

#include <algorithm>
#include <utility>

#include "model/core/config_key_error.h"
#include "rl/config/cross_checks.h"

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
  return below == 0 || below == above ? fmt::format("{}", above)
                                      : fmt::format("{} or {}", below, above);
}

}  // namespace

void resolve_mesh(parallel::ParallelConfig& p, int world_size) {
  const int64_t shard_ranks = p.tensor * p.gtp_remat;
  if (world_size % shard_ranks != 0) {
    throw ConfigError(fmt::format(
        "world size {} is not a multiple of parallel.tensor x parallel.gtp_remat = {} x {} = {}; "
        "nearest legal world sizes: {}",
        world_size, p.tensor, p.gtp_remat, shard_ranks,
        world_size < shard_ranks ? fmt::format("{}", shard_ranks)
                                 : fmt::format("{} or {}", world_size / shard_ranks * shard_ranks,
                                               (world_size / shard_ranks + 1) * shard_ranks)));
  }
  const int64_t replicas = world_size / shard_ranks;
  if (p.data != 0 && p.data != replicas) {
    throw ConfigKeyError("parallel.data",
                         fmt::format("is {}, but world size {} / (tensor {} x gtp_remat {}) is {}",
                                     p.data, world_size, p.tensor, p.gtp_remat, replicas));
  }
  p.data = replicas;
}

namespace {

void check_batches(const RunConfig& config) {
  const PolicyConfig& policy = config.policy;
  const int64_t sequences =
      config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt;
  if (sequences % policy.train_global_batch_size != 0) {
    throw ConfigKeyError(
        "policy.train_global_batch_size",
        fmt::format("is {}, which does not divide the {} sequences of a step "
                    "(grpo.num_prompts_per_step {} x "
                    "grpo.num_generations_per_prompt {}); nearest legal values: {}",
                    policy.train_global_batch_size, sequences, config.grpo.num_prompts_per_step,
                    config.grpo.num_generations_per_prompt,
                    nearest_divisors(sequences, policy.train_global_batch_size)));
  }
}

void check_packing(const PolicyConfig& policy) {
  const int64_t longest = policy.max_total_sequence_length;
  const SequencePackingConfig& packing = policy.sequence_packing;
  for (const auto& [key, tokens] : {std::pair{"train_mb_tokens", packing.train_mb_tokens},
                                    std::pair{"logprob_mb_tokens", packing.logprob_mb_tokens}}) {
    if (tokens < longest) {
      throw ConfigKeyError(
          fmt::format("policy.sequence_packing.{}", key),
          fmt::format("is {}; allowed: at least policy.max_total_sequence_length, {}", tokens,
                      longest));
    }
  }
}

void check_rewards(const std::vector<RewardConfig>& rewards) {
  if (rewards.empty()) {
    throw ConfigKeyError("env.rewards", "is empty; at least one reward function is needed");
  }
  for (size_t i = 0; i < rewards.size(); ++i) {
    for (size_t earlier = 0; earlier < i; ++earlier) {
      if (rewards[earlier].name != rewards[i].name) continue;
      throw ConfigKeyError(fmt::format("env.rewards.{}.name", i),
                           fmt::format("is '{}', as that of env.rewards.{}; give each its own",
                                       rewards[i].name, earlier));
    }
  }
}

void resolve_grpo(RunConfig& config, int world_size) {
  PolicyConfig& policy = config.policy;
  const int64_t sequences =
      config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt;
  if (policy.train_global_batch_size == 0) policy.train_global_batch_size = sequences;
  check_batches(config);
  if (policy.generation.temperature == 0.0) {
    throw ConfigKeyError("policy.generation.temperature",
                         "is 0; allowed: above 0 in training (0, greedy, is for generate)");
  }
  if (policy.generation.max_new_tokens >= policy.max_total_sequence_length) {
    throw ConfigKeyError(
        "policy.generation.max_new_tokens",
        fmt::format("is {}; allowed: less than policy.max_total_sequence_length, {}",
                    policy.generation.max_new_tokens, policy.max_total_sequence_length));
  }
  generation::check_cache_slots(policy.generation, policy.max_total_sequence_length,
                                (sequences + world_size - 1) / world_size);
  if (config.loss_fn.use_kl_in_reward) {
    throw ConfigKeyError(
        "loss_fn.use_kl_in_reward",
        "is true; allowed: false, since the advantages of this program's loop take no KL penalty "
        "(loss_fn.reference_policy_kl_penalty puts it into the loss)");
  }
  check_rewards(config.env.rewards);
  if (config.warm_start.num_steps > 0 && config.data.train.response_template.empty()) {
    throw ConfigKeyError(
        "warm_start.num_steps",
        fmt::format("is {}, but data.train.response_template is empty: there is nothing to learn",
                    config.warm_start.num_steps));
  }
}

// "val:accuracy" -> "validation/accuracy", "train:loss" -> "train/loss"; other names stay.
void resolve_metric_name(std::string& name) {
  for (const auto& [prefix, ours] :
       {std::pair{"val:", "validation/"}, std::pair{"train:", "train/"}}) {
    if (!name.starts_with(prefix)) continue;
    name = ours + name.substr(std::string_view(prefix).size());
    return;
  }
}

}  // namespace

void resolve(RunConfig& config, int world_size) {
  resolve_mesh(config.parallel, world_size);
  if (config.checkpointing.metric_name) resolve_metric_name(*config.checkpointing.metric_name);
  resolve_metric_name(config.grpo.early_stop.metric);
  resolve_metric_name(config.sft.early_stop.metric);
  if (config.is_sft()) {
    check_sft(config);
  } else {
    resolve_grpo(config, world_size);
  }
  check_packing(config.policy);
  check_validation(config);
  check_named_metrics(config);
}

std::string batch_arithmetic(const RunConfig& config, int world_size) {
  const std::string ranks =
      fmt::format("{} data ranks (gtp_remat {} x data {})", world_size / config.parallel.tensor,
                  config.parallel.gtp_remat, config.parallel.data);
  const MicroBatchRule rule = config.policy.sequence_packing.training();
  const DataRanks data_ranks{.gtp_remat = static_cast<int>(config.parallel.gtp_remat),
                             .dp = static_cast<int>(config.parallel.data)};
  const int64_t least =
      std::min(least_micro_batches(data_ranks, rule), config.policy.train_global_batch_size);
  const std::string micro_batches = fmt::format("at least {} micro-batch{} of at most {} tokens",
                                                least, least == 1 ? "" : "es", rule.max_tokens);
  if (config.is_sft()) {
    return fmt::format("{} examples a step over {}; {}", config.policy.train_global_batch_size,
                       ranks, micro_batches);
  }
  const int64_t sequences =
      config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt;
  const int64_t updates = sequences / config.policy.train_global_batch_size;
  return fmt::format(
      "{} prompts x {} samples = {} sequences a step over {}; {} update{} of {} sequences a step; "
      "{}",
      config.grpo.num_prompts_per_step, config.grpo.num_generations_per_prompt, sequences, ranks,
      updates, updates == 1 ? "" : "s", config.policy.train_global_batch_size, micro_batches);
}

}  // namespace grpo::rl
