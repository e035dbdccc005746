#include "generation/prompt_queue.h"

#include <algorithm>

namespace grpo::generation {

std::vector<WaitingPrompt> PromptQueue::take(int64_t num_places, const KvCache& cache,
                                             uint64_t weights_version) {
  std::vector<WaitingPrompt> prompts;
  for (; num_places > 0 && next_ < requests_.size(); ++next_) {
    const GenerationRequest& request = requests_[next_];
    if (request.sample_indices.empty()) continue;
    prompts.push_back(
        {.request = &request, .next_sample = 0, .pages = cache.begin_sequence(weights_version)});
    num_places -= prompts.back().num_waiting_samples();
  }
  return prompts;
}

std::vector<SequenceRows> next_prompt_chunk(std::span<WaitingPrompt> prompts, int64_t max_tokens) {
  std::vector<SequenceRows> chunk;
  for (WaitingPrompt& prompt : prompts) {
    if (max_tokens == 0) break;
    const auto left = std::span<const int32_t>(prompt.request->prompt_tokens)
                          .subspan(static_cast<size_t>(prompt.pages.num_tokens));
    const auto count = std::min(max_tokens, static_cast<int64_t>(left.size()));
    chunk.push_back({.pages = &prompt.pages,
                     .tokens = left.first(static_cast<size_t>(count)),
                     .wants_logits = count == static_cast<int64_t>(left.size())});
    max_tokens -= count;
  }
  return chunk;
}

}  // namespace grpo::generation
