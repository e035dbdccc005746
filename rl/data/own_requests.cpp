#include "rl/data/own_requests.h"

#include "rl/data/work_division.h"

namespace grpo::rl {

std::vector<generation::GenerationRequest> own_requests(
    const std::vector<std::span<const int32_t>>& prompts, int64_t first_draw_index,
    int64_t num_samples, int num_ranks, int rank) {
  const auto [begin, end] =
      contiguous_share(static_cast<int64_t>(prompts.size()) * num_samples, num_ranks, rank);
  std::vector<generation::GenerationRequest> requests;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t prompt = i / num_samples;
    if (requests.empty() || requests.back().tag != prompt) {
      const std::span<const int32_t> tokens = prompts[static_cast<size_t>(prompt)];
      requests.push_back({.tag = prompt,
                          .draw_index = static_cast<uint64_t>(first_draw_index + prompt),
                          .prompt_tokens = {tokens.begin(), tokens.end()},
                          .sample_indices = {}});
    }
    requests.back().sample_indices.push_back(static_cast<int32_t>(i % num_samples));
  }
  return requests;
}

}  // namespace grpo::rl
