// Engine: draws completions from one model by continuous batching over a paged KV cache.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "generation/fault_injection.h"
#include "generation/forward_graphs.h"
#include "generation/kv_cache.h"
#include "generation/prompt_queue.h"
#include "generation/sequence.h"
#include "model/ops/sampler.h"
#include "model/transformer.h"

namespace grpo::generation {

struct EngineOptions {
  int64_t max_sequence_tokens;  // prompt plus response, at most
  int64_t max_batch_size;       // sequences decoded together
  int64_t page_size_tokens;
  int64_t prefill_chunk_tokens;  // prompt rows run through the model at once
  bool enforce_eager = false;    // decode steps of a CUDA device are not recorded as graphs
  InjectedFault fault = InjectedFault::kNone;
};

struct EngineCounters {
  int64_t prefilled_tokens = 0;  // prompt rows run, each prompt once
  int64_t prefill_chunks = 0;
  int64_t decode_steps = 0;
  int64_t generated_tokens = 0;
  int64_t graph_launches = 0;  // decode steps that ran as graphs
};

// What a call of generate() is asked, to plan its memory by: prompts in order, of which the first
// and the last may have fewer samples than the others.
struct EngineLoad {
  int64_t num_prompts;
  int64_t num_samples;        // of all prompts
  int64_t first_num_samples;  // of the first prompt
  int64_t samples_per_prompt;
  int64_t shortest_prompt;  // tokens
  int64_t longest_prompt;
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

  // The largest steps of a generate() of such a load, none of whose samples ends early; on a
  // rehearsal device.
  void rehearse(const EngineLoad& load, const SamplingParams& params, OpContext& ctx);

  const EngineCounters& counters() const { return counters_; }
  // Outside of generate() nothing is held.
  const KvCache& cache() const { return cache_; }

 private:
  struct Running {
    const GenerationRequest* request;
    SequencePages pages;
    Completion completion;
  };

  int64_t num_free_places() const;
  bool refill_is_due() const;
  void fill_places(PromptQueue& queue, const SamplingParams& params, OpContext& ctx);
  void prefill(std::span<WaitingPrompt> prompts, const SamplingParams& params, OpContext& ctx);
  void start_samples(std::span<WaitingPrompt> prompts, const Tensor& logits,
                     const SamplingParams& params, OpContext& ctx);
  void decode_step(const SamplingParams& params, OpContext& ctx);
  RowPadding decode_padding(int64_t num_sequences, int64_t context_tokens, Device device) const;
  void run_rows(const Tensor& logits, std::vector<SequenceRows> rows, const RowPadding& padding,
                OpContext& ctx);
  Tensor take_logits(int64_t num_rows, OpContext& ctx) const;
  void draw_tokens(std::span<Running> running, const Tensor& logits, std::span<const int32_t> rows,
                   const SamplingParams& params, OpContext& ctx);
  void accept(Running& running, const ops::SampledToken& sampled);
  bool is_finished(Running& running, const SamplingParams& params) const;
  void collect_finished(const SamplingParams& params, std::vector<Completion>& finished);

  struct RehearsedRows;
  RehearsedRows fullest_chunk(const EngineLoad& load) const;
  void rehearse_rows(const RehearsedRows& plan, const SamplingParams& params, OpContext& ctx);

  model::Transformer& transformer_;
  EngineOptions options_;
  KvCache cache_;
  FaultInjection fault_;
  ForwardGraphs graphs_;
  OwnedTensor prompt_logits_;  // [1, V] float32: of waiting_
  // The prompt that ran, but has more samples than there were places.
  std::optional<WaitingPrompt> waiting_;
  std::vector<Running> running_;
  EngineCounters counters_;
};

}  // namespace grpo::generation
