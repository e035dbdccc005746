#include "rl/warm_start.h"

#include <algorithm>

#include "parallel/host_collectives.h"
#include "rl/optimizer.h"
#include "rl/supervised_update.h"

namespace grpo::rl {

double warm_start(const RunConfig& config, const PromptDataset& dataset, int32_t end_token,
                  model::Transformer& policy, parallel::ShardedParameterStore& store,
                  RunObserver* observer, const std::atomic<bool>& stop_requested, OpContext& ctx) {
  Optimizer optimizer(config.policy.optimizer, store, ctx.workspace.allocator());
  const WarmStartConfig& warm = config.warm_start;
  const int64_t report_every = std::max<int64_t>(1, warm.num_steps / 5);
  double loss = 0;
  for (int64_t step = 0; step < warm.num_steps; ++step) {
    if (parallel::any_rank(store.groups().data.communicator(), stop_requested.load())) break;
    const std::vector<SupervisedExample> examples =
        draw_supervised(dataset, step * warm.global_batch_size, warm.global_batch_size,
                        config.grpo.seed, end_token);
    loss = update_supervised(policy, store, optimizer, examples,
                             {.max_tokens = config.policy.sequence_packing.train_mb_tokens,
                              .learning_rate = warm.lr,
                              .max_grad_norm = config.policy.max_grad_norm},
                             ctx)
               .loss;
    const bool reports = (step + 1) % report_every == 0 || step + 1 == warm.num_steps;
    if (observer != nullptr && reports) {
      observer->on_message(fmt::format("warm start {}/{}: negative log-likelihood {:.4f}", step + 1,
                                       warm.num_steps, loss));
    }
  }
  return loss;
}

}  // namespace grpo::rl
