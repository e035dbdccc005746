// Warm start: supervised steps on the dataset's responses before the first rollout.
#pragma once

#include <atomic>

#include "model/transformer.h"
#include "parallel/store/sharded_parameter_store.h"
#include "rl/config/run_config.h"
#include "rl/data/prompt_dataset.h"
#include "rl/models/optimizer.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

struct WarmStartParts {
  const PromptDataset& dataset;
  int32_t end_token;
  model::Transformer& policy;
  parallel::ShardedParameterStore& store;  // the policy's
  Optimizer& optimizer;                    // not that of the steps which follow
};

// Collective over the store's groups. Learns prompt -> response plus `end_token` by mean negative
// log-likelihood of the response tokens at warm_start.lr, in the steps from number `num_done` on.
// The examples fit policy.max_total_sequence_length (check_supervised_data). Returns how many steps
// are done: fewer than warm_start.num_steps when `stop_requested` became true on any rank.
// `observer` may be null.
int64_t warm_start(const RunConfig& config, const WarmStartParts& parts, int64_t num_done,
                   RunObserver* observer, const std::atomic<bool>& stop_requested, OpContext& ctx);

}  // namespace grpo::rl
