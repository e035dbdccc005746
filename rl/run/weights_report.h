// What a policy's weights look like after a value was not finite, to name the culprit.
#pragma once

#include <string>

#include "model/core/errors.h"
#include "parallel/store/sharded_parameter_store.h"
#include "rl/loop/run_context.h"

namespace grpo::rl {

// "the weights of 'model.norm.weight' are not finite", or "this rank's weights are finite, the
// largest is 3.2e+20 in 'lm_head.weight'". Reads every weight that this rank stores; not
// collective.
std::string describe_weights(const parallel::ShardedParameterStore& store);

// Runs `body` and returns what it returns; a NonFiniteError leaves it with the run's phase and step
// and the state of the weights.
template <typename Body>
auto naming_culprit(const RunContext& run, const parallel::ShardedParameterStore& store,
                    const Body& body) {
  try {
    return body();
  } catch (const NonFiniteError& error) {
    throw NonFiniteError(fmt::format("phase '{}', step {}: {}; {}", run.current_phase,
                                     run.current_step, error.what(), describe_weights(store)));
  }
}

}  // namespace grpo::rl
