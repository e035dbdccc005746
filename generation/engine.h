// Engine: draws completions from one model by continuous batching over a paged KV cache.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "generation/kv_cache.h"
#include "generation/sequence.h"
#include "model/ops/sampler.h"
#include "model/transformer.h"

namespace grpo::generation {

struct EngineOptions {
  int64_t max_sequence_tokens;  // prompt plus response, at most
  int64_t max_batch_size;       // sequences decoded together
  int64_t page_size_tokens;
  int64_t prefill_chunk_tokens;  // prompt rows run through the model at once
};

struct EngineCounters {
  int64_t prefilled_tokens = 0;  // prompt rows run, each prompt once
  int64_t decode_steps = 0;
  int64_t generated_tokens = 0;
};

// One thread; the transformer outlives it. What it draws depends on the weights, the requests and
// the sampling parameters alone: not on batch size, page size, chunk size or the order of requests.
class Engine {
 public:
  Engine(model::Transformer& transformer, const EngineOptions& options, Allocator& allocator);

  // Completions ordered by (tag, sample index). `on_finished(done, total)` is called as completions
  // end. Throws InternalError for an empty prompt, one that leaves no room, or weights that change
  // meanwhile; NonFiniteError for logits that are not numbers. The engine is usable after an
  // exception.
  std::vector<Completion> generate(std::span<const GenerationRequest> requests,
                                   const SamplingParams& params, OpContext& ctx,
                                   const std::function<void(int64_t, int64_t)>& on_finished);

  // The largest steps of a generate() of `num_samples` sequences of prompts of up to
  // `longest_prompt` tokens, none of which ends early; on a rehearsal device.
  void rehearse(int64_t num_samples, int64_t longest_prompt, const SamplingParams& params,
                OpContext& ctx);

  const EngineCounters& counters() const { return counters_; }
  // Outside of generate() nothing is held.
  const KvCache& cache() const { return cache_; }

 private:
  // A prompt whose samples have not all started.
  struct Prompt {
    const GenerationRequest* request;
    size_t next_sample;
    SequencePages pages;
  };
  struct Running {
    const GenerationRequest* request;
    SequencePages pages;
    Completion completion;
  };

  void prefill(Prompt& prompt, OpContext& ctx);
  void start_sample(Prompt& prompt, const SamplingParams& params, OpContext& ctx);
  void decode_step(const SamplingParams& params, OpContext& ctx);
  void accept(Running& running, const ops::SampledToken& sampled, const SamplingParams& params);
  bool is_finished(Running& running, const SamplingParams& params) const;
  void collect_finished(const SamplingParams& params, std::vector<Completion>& finished);
  void sample_rows(std::vector<ops::SampledToken>& out, const Tensor& logits,
                   const std::vector<double>& uniforms, const SamplingParams& params,
                   OpContext& ctx);
  void run_rows(const Tensor& logits, std::span<SequencePages* const> sequences,
                std::span<const std::span<const int32_t>> tokens, OpContext& ctx);
  model::CachedRows place_rows(std::span<SequencePages* const> sequences,
                               std::span<const std::span<const int32_t>> tokens,
                               OpContext& ctx) const;

  model::Transformer& transformer_;
  EngineOptions options_;
  KvCache cache_;
  OwnedTensor prompt_logits_;  // [1, V] float32: of the prompt being started
  std::vector<Running> running_;
  EngineCounters counters_;
};

}  // namespace grpo::generation
