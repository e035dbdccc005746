// The engine's side of the memory plan.
#include <algorithm>
#include <numeric>

#include "generation/engine.h"

namespace grpo::generation {

namespace {

// As many prompts run together as it takes for their samples to fill the batch.
int64_t most_prompts_together(const EngineLoad& load, int64_t num_places) {
  if (num_places <= load.first_num_samples) return 1;
  const int64_t others = 1 + (num_places - load.first_num_samples - 1) / load.samples_per_prompt;
  return std::min(load.num_prompts, 1 + others);
}

}  // namespace

// A forward that is only planned.
struct Engine::RehearsedRows {
  int64_t num_sequences;
  int64_t num_rows;        // of all sequences
  int64_t context_tokens;  // of the longest sequence
  int64_t num_logits;
  bool decodes = false;
};

// Prompts of the load's lengths that end in one chunk, and that have a part in it, can be as many
// as this when a chunk is not enough for all: the first has one token left, the last begins with
// one.
Engine::RehearsedRows Engine::fullest_chunk(const EngineLoad& load) const {
  const int64_t num_prompts = most_prompts_together(load, options_.max_batch_size);
  const int64_t all_tokens = num_prompts * load.longest_prompt;
  RehearsedRows chunk{.num_sequences = num_prompts,
                      .num_rows = std::min(options_.prefill_chunk_tokens, all_tokens),
                      .context_tokens = load.longest_prompt,
                      .num_logits = num_prompts};
  if (chunk.num_rows == all_tokens) return chunk;
  const int64_t most_ended = 1 + (chunk.num_rows - 1) / load.shortest_prompt;
  const int64_t most_parts =
      chunk.num_rows == 1 ? 1 : 2 + (chunk.num_rows - 2) / load.shortest_prompt;
  chunk.num_logits = std::min(num_prompts, most_ended);
  chunk.num_sequences = std::min(num_prompts, most_parts);
  return chunk;
}

void Engine::rehearse(const EngineLoad& load, const SamplingParams& params, OpContext& ctx) {
  CHECK(ctx.device.is_rehearsal, "a rehearsal on {}", device_name(ctx.device));
  if (load.num_samples == 0) return;
  rehearse_rows(fullest_chunk(load), params, ctx);
  const int64_t num_drawn =
      std::min(params.max_new_tokens, options_.max_sequence_tokens - load.longest_prompt);
  if (num_drawn == 1) return;
  const int64_t num_running = std::min(load.num_samples, options_.max_batch_size);
  rehearse_rows({.num_sequences = num_running,
                 .num_rows = num_running,
                 // The last step runs the last but one token.
                 .context_tokens = load.longest_prompt + num_drawn - 1,
                 .num_logits = num_running,
                 .decodes = true},
                params, ctx);
}

void Engine::rehearse_rows(const RehearsedRows& plan, const SamplingParams& params,
                           OpContext& ctx) {
  const Workspace::Scope scope(ctx.workspace);
  const GenerationRequest request{
      .tag = 0, .draw_index = 0, .prompt_tokens = {}, .sample_indices = {}};
  const int64_t share = plan.num_rows / plan.num_sequences;
  const int64_t num_larger = plan.num_rows % plan.num_sequences;
  const std::vector<int32_t> tokens(static_cast<size_t>(share + 1), 0);
  std::vector<Running> running(static_cast<size_t>(plan.num_sequences));
  std::vector<SequenceRows> rows;
  for (int64_t i = 0; i < plan.num_sequences; ++i) {
    Running& sequence = running[static_cast<size_t>(i)];
    sequence.request = &request;
    sequence.pages = cache_.begin_sequence(transformer_.store().version());
    const int64_t count = share + (i < num_larger ? 1 : 0);
    cache_.extend(sequence.pages, plan.context_tokens - count);
    rows.push_back({.pages = &sequence.pages,
                    .tokens = std::span(tokens).first(static_cast<size_t>(count)),
                    .wants_logits = i < plan.num_logits});
  }
  const RowPadding padding =
      plan.decodes ? decode_padding(plan.num_sequences, plan.context_tokens, ctx.device)
                   : RowPadding{};
  const Tensor logits = take_logits(std::max(plan.num_logits, padding.num_sequences), ctx);
  run_rows(logits, std::move(rows), padding, ctx);
  std::vector<int32_t> logit_rows(static_cast<size_t>(plan.num_logits));
  std::iota(logit_rows.begin(), logit_rows.end(), 0);
  draw_tokens(std::span(running).first(logit_rows.size()), logits.rows(0, plan.num_logits),
              logit_rows, params, ctx);
  cache_.release_all();
}

}  // namespace grpo::generation
