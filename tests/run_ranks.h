// Ranks as threads, for tests of everything collective.
#pragma once

#include <functional>

#include "parallel/comm/world.h"

namespace grpo::testing {

// Runs fn on `num_ranks` threads, each with its own connected World, and joins them all. The first
// failure by time is rethrown (the root cause, not its echoes). Every wait has a deadline of
// `timeout`.
void run_ranks(int num_ranks, const std::function<void(parallel::World&)>& fn,
               std::chrono::milliseconds timeout = std::chrono::seconds(30));

}  // namespace grpo::testing
