// The completions that a rank draws.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generation/sequence.h"

namespace grpo::rl {

// The rank's contiguous share of the (prompt, sample) list, ordered by prompt, then sample. Tags
// are the prompts' places in the list; prompt 0 has `first_draw_index`.
std::vector<generation::GenerationRequest> own_requests(
    const std::vector<std::span<const int32_t>>& prompts, int64_t first_draw_index,
    int64_t num_samples, int num_ranks, int rank);

}  // namespace grpo::rl
