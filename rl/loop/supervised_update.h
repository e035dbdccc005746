// SupervisedUpdate: one optimizer update by the negative log-likelihood of responses, and that
// likelihood without an update.
#pragma once

#include <cstdint>
#include <vector>

#include "model/transformer.h"
#include "parallel/store/sharded_parameter_store.h"
#include "rl/data/supervised_example.h"
#include "rl/data/work_division.h"
#include "rl/models/optimizer.h"

namespace grpo::rl {

struct SupervisedOptions {
  MicroBatchRule micro_batches;
  double learning_rate;
  double max_grad_norm;  // 0 does not clip
};

struct SupervisedResult {
  double loss;  // mean over all learnt tokens
  double grad_norm;
};

// Collective over the store's groups. The loss is added by example, in their order, and divided
// once by the global number of learnt tokens, so that it has the same bits under every layout.
// Throws NonFiniteError for a loss or gradient that is not finite.
SupervisedResult update_supervised(model::Transformer& policy,
                                   parallel::ShardedParameterStore& store, Optimizer& optimizer,
                                   const std::vector<SupervisedExample>& examples,
                                   const SupervisedOptions& options, OpContext& ctx);

// Collective over groups.data. The sum over all learnt tokens, by forward passes alone; the same
// bits as the loss above has before it is divided.
double supervised_nll(model::Transformer& policy, const parallel::ProcessGroups& groups,
                      const std::vector<SupervisedExample>& examples, int64_t max_tokens,
                      OpContext& ctx);

}  // namespace grpo::rl
