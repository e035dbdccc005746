#include "generation/sequence.h"

#include "model/core/counter_rng.h"

namespace grpo::generation {

double sampling_uniform(const SamplingParams& params, uint64_t draw_index, int32_t sample_index,
                        int64_t position) {
  const uint64_t split =
      hash_name(params.split == DrawSplit::kTrain ? "sample/train" : "sample/validation");
  return uniform_at(params.seed, split + draw_index, static_cast<uint64_t>(sample_index),
                    static_cast<uint64_t>(position));
}

}  // namespace grpo::generation
