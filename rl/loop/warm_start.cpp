#include "rl/loop/warm_start.h"

#include <algorithm>

#include "parallel/comm/host_collectives.h"
#include "rl/loop/supervised_update.h"

namespace grpo::rl {

int64_t warm_start(const RunConfig& config, const WarmStartParts& parts, int64_t num_done,
                   RunObserver* observer, const std::atomic<bool>& stop_requested, OpContext& ctx) {
  const WarmStartConfig& warm = config.warm_start;
  const int64_t report_every = std::max<int64_t>(1, warm.num_steps / 5);
  Communicator& everyone = parts.store.groups().data.communicator();
  int64_t step = num_done;
  while (step < warm.num_steps && !parallel::any_rank(everyone, stop_requested.load())) {
    const std::vector<SupervisedExample> examples =
        draw_supervised(parts.dataset, step * warm.global_batch_size, warm.global_batch_size,
                        config.grpo.seed, parts.end_token);
    const double loss =
        update_supervised(parts.policy, parts.store, parts.optimizer, examples,
                          {.micro_batches = config.policy.sequence_packing.training(),
                           .learning_rate = warm.lr,
                           .max_grad_norm = config.policy.max_grad_norm},
                          ctx)
            .loss;
    ++step;
    if (observer != nullptr && (step % report_every == 0 || step == warm.num_steps)) {
      observer->on_message(fmt::format("warm start {}/{}: negative log-likelihood {:.4f}", step,
                                       warm.num_steps, loss));
    }
  }
  return step;
}

}  // namespace grpo::rl
