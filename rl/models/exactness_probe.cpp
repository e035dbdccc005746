#include "rl/models/exactness_probe.h"

#include <algorithm>

#include "model/product_probe.h"

namespace grpo::rl {

namespace {

// The most rows that any pass of the run has on one rank.
model::ProbeRows most_rows(const RunConfig& config, int num_data_ranks) {
  const PolicyConfig& policy = config.policy;
  const int64_t longest = policy.max_total_sequence_length;
  int64_t sequences = policy.train_global_batch_size;
  if (config.warm_start.num_steps > 0) {
    sequences = std::max(sequences, config.warm_start.global_batch_size);
  }
  if (config.is_sft()) {
    if (!config.data.validation.empty()) {
      sequences = std::max(sequences, config.sft.val_global_batch_size);
    }
  } else {
    sequences = std::max(sequences,
                         config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt);
  }
  const int64_t share = (sequences + num_data_ranks - 1) / num_data_ranks;
  const SequencePackingConfig& packing = policy.sequence_packing;
  const int64_t trained =
      std::min(share * longest, std::max(packing.train_mb_tokens, packing.logprob_mb_tokens));
  if (config.is_sft()) {
    return {.layers = trained, .head = std::min(trained, packing.logprob_chunk_tokens)};
  }
  const generation::GenerationConfig& g = policy.generation;
  const int64_t decoded = std::min(sequences, g.max_batch_size);
  const int64_t prefilled = std::min(sequences * longest, g.prefill_chunk_tokens);
  return {.layers = std::max({trained, decoded, prefilled}),
          .head = std::max(std::min(trained, packing.logprob_chunk_tokens), decoded)};
}

}  // namespace

int64_t probe_exactness(const RunConfig& config, PolicyModels& models, OpContext& ctx) {
  if (!config.numerics.is_exact() || ctx.device.kind == DeviceKind::kCpu) return 0;
  const int64_t num_shapes = model::probe_products(
      models.parameters(), models.policy_store(), models.policy().score_schedule(),
      most_rows(config, models.groups().data.size()), ctx);
  models.policy_store().drop_idle_buffers();
  return num_shapes;
}

}  // namespace grpo::rl
