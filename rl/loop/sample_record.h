// The record of a step's samples: what they are, what was computed of them, and why, for people,
// replay and diagnosis.
//
// samples/step_N.jsonl holds one object per sample; fields are never removed and may be null.
//   schema_version       kSampleSchemaVersion
//   step                 of the run, 1-based
//   weights_version      optimizer updates before the rollout; checkpoint step_(N-1) has the
//   weights data_set, line       file of the prompt, and its 1-based line there example, group,
//   sample, prompt_index
//                        0-based: data line without blank ones, prompt of the step, completion of
//                        the prompt, prompt of the whole run (it keys the random numbers)
//   prompt, response, answer                text, without special tokens
//   prompt_tokens, response_tokens          ids
//   generation_logprobs  per response token, over the kept tokens, as generation stored them
//   prev_logprobs        the same from the training side, of the weights before the step
//   reference_policy_logprobs               of the reference, unfiltered; null without KL
//   entropy              per response token, of the unfiltered distribution; null: not computed
//   kept_tokens          {"offset", "bytes", "num_ids", "has_thresholds"}: where the sets of kept
//                        tokens are in step_N.kept; null without a filter
//   reward, reward_parts                    the total, and each function's score by name
//   masked               why the sample does not count; null when it does
//   advantage, finish_reason                "stop" or "length"
// Log-probabilities are the shortest decimals that read back to the same float32; a value that is
// not finite is "nan", "inf" or "-inf".
//
// step_N.kept is gzip of the samples' sets, one after the other in the order of the lines; per
// sample, little-endian, of n response tokens:
//   uint32 ends[n]           number of ids up to and including each token's
//   uint32 ids[ends[n - 1]]  ascending per token; a token without ids has a threshold
//   n times (float64 above, int32 last_tie), where has_thresholds (KeptThreshold)
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rl/data/prompt_dataset.h"
#include "rl/loop/policy_loss.h"
#include "rl/loop/rollout.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

constexpr int kSampleSchemaVersion = 1;

// What the samples of a step have in common.
struct SampleOrigin {
  int64_t step;
  int64_t weights_version;
  std::string data_path;
  int64_t first_prompt_index;
  std::vector<std::string> reward_names;
};

// Where a sample's sets of kept tokens begin in the uncompressed step_N.kept.
struct KeptPlace {
  int64_t offset;
  int64_t num_bytes;
};

// One line. `kept` is null where no set was stored.
std::string sample_json(const SampleOrigin& origin, const RolloutSequence& sequence,
                        const PromptExample& example, const SequenceSignals& signals,
                        const KeptPlace* kept);

// The lines of sequences, and their sets, which this rank holds. signals[i] belong to sequences[i];
// `example_at` gives the prompt of a data line.
SampleBatch record_samples(const SampleOrigin& origin,
                           const std::function<const PromptExample&(int64_t)>& example_at,
                           std::span<const RolloutSequence> sequences,
                           std::span<const SequenceSignals> signals);

}  // namespace grpo::rl
