// What is asked of the engine and what comes back.
#pragma once

#include <cstdint>
#include <vector>

#include "model/ops/log_softmax.h"

namespace grpo::generation {

enum class FinishReason : uint8_t { kStop, kLength };

// Which stream of random numbers; part of every sample's key.
enum class DrawSplit : uint8_t { kTrain, kValidation };

// Some samples of one prompt; the prompt is prefilled once for all of them.
struct GenerationRequest {
  int64_t tag;                          // the caller's; comes back with each completion
  uint64_t draw_index;                  // of the prompt over the whole run
  std::vector<int32_t> prompt_tokens;   // at least one
  std::vector<int32_t> sample_indices;  // within the prompt's group
};

struct SamplingParams {
  ops::SamplingFilter filter;
  bool greedy;  // ignores the filter and the seed
  int64_t max_new_tokens;
  std::vector<int32_t> stop_token_ids;  // the drawn stop token ends and belongs to the completion
  bool ignore_stop;
  uint64_t seed;
  DrawSplit split;
  bool stores_kept_tokens;  // with each completion, where the filter is on
};

struct Completion {
  int64_t tag;
  int32_t sample_index;
  std::vector<int32_t> tokens;  // response only
  std::vector<float> logprobs;  // processed, one a token
  ops::KeptTokens kept;         // one row a token, or empty
  FinishReason finish_reason;
};

// The random number of a token: a function of its key alone, so that batches, ranks and schedules
// cannot change it.
double sampling_uniform(const SamplingParams& params, uint64_t draw_index, int32_t sample_index,
                        int64_t position);

}  // namespace grpo::generation
