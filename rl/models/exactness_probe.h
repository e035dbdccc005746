// The start-up check of exact numerics on a GPU, over the products of the trained policy.
#pragma once

#include "rl/config/run_config.h"
#include "rl/models/policy_models.h"

namespace grpo::rl {

// The products have the rows of the run's batches, so that what the probe takes from the workspace
// is planned like them. Returns the number of distinct shapes; 0 where there is nothing to check:
// in fast mode and on the CPU, whose products are exact by their code. Collective over gtp_remat.
// Throws CudaError that names shape and algorithm.
int64_t probe_exactness(const RunConfig& config, PolicyModels& models, OpContext& ctx);

}  // namespace grpo::rl
