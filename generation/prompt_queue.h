// PromptQueue: the prompts of a call to the engine in the order in which their samples start.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generation/cached_rows.h"
#include "generation/sequence.h"

namespace grpo::generation {

// A prompt whose samples have not all started.
struct WaitingPrompt {
  const GenerationRequest* request;
  size_t next_sample;
  SequencePages pages;  // of the tokens that ran already

  int64_t num_waiting_samples() const {
    return static_cast<int64_t>(request->sample_indices.size() - next_sample);
  }
};

// The requests outlive it.
class PromptQueue {
 public:
  explicit PromptQueue(std::span<const GenerationRequest> requests) : requests_(requests) {}

  // The next prompts, none of whose tokens ran: as many as it takes for their samples to fill
  // `num_places`. Each has at least one sample, and all but the last start all of theirs.
  std::vector<WaitingPrompt> take(int64_t num_places, const KvCache& cache,
                                  uint64_t weights_version);

 private:
  std::span<const GenerationRequest> requests_;
  size_t next_ = 0;
};

// The next `max_tokens` tokens, at most, of prompts that run one after the other. Logits are wanted
// of prompts that end in the chunk: they are the first of `prompts`.
std::vector<SequenceRows> next_prompt_chunk(std::span<WaitingPrompt> prompts, int64_t max_tokens);

}  // namespace grpo::generation
