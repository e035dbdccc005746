// From a config as it was read to one that states everything the run needs: the mesh, the batch
// arithmetic and the rules between sections.
#pragma once

#include <string>

#include "rl/config/run_config.h"

namespace grpo::rl {

// Rules between sections, checked once after reading; messages name the keys. Fills what 0 or null
// derives from other keys (policy.train_global_batch_size, parallel.data), so that the resolved
// config states it.
void resolve(RunConfig& config, int world_size);

// Fills parallel.data from the world size. Throws ConfigError when the axes do not multiply to it.
void resolve_mesh(parallel::ParallelConfig& config, int world_size);

// "8 prompts x 4 samples = 32 sequences a step, 2 data ranks, 1 update of 32 sequences a step, ..."
std::string batch_arithmetic(const RunConfig& config, int world_size);

}  // namespace grpo::rl
