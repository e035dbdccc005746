// Warm start: supervised steps on the dataset's responses before the first rollout.
#pragma once

#include <atomic>

#include "model/transformer.h"
#include "parallel/sharded_parameter_store.h"
#include "rl/metrics.h"
#include "rl/prompt_dataset.h"
#include "rl/run_config.h"

namespace grpo::rl {

// Collective over the store's groups. Learns prompt -> response plus `end_token` by mean negative
// log-likelihood of the response tokens, with the policy's optimizer at warm_start.lr; its state is
// dropped afterwards. The examples fit policy.max_total_sequence_length (check_supervised_data).
// Returns the last step's loss. Ends early on all ranks when `stop_requested` becomes true on any.
// `observer` may be null.
double warm_start(const RunConfig& config, const PromptDataset& dataset, int32_t end_token,
                  model::Transformer& policy, parallel::ShardedParameterStore& store,
                  RunObserver* observer, const std::atomic<bool>& stop_requested, OpContext& ctx);

}  // namespace grpo::rl
