#include "generation/engine.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "model/core/host_transfer.h"

namespace grpo::generation {

namespace {

int64_t pages_for(int64_t tokens, int64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

KvCacheOptions cache_options(const model::Transformer& transformer, DType dtype,
                             const EngineOptions& options) {
  const model::ModelConfig& c = transformer.config();
  // One place more than the batch: a prompt keeps its pages until all of its samples have started.
  return {.num_layers = c.num_layers,
          .num_kv_heads = c.num_kv_heads,
          .head_dim = c.head_dim,
          .dtype = dtype,
          .page_size_tokens = options.page_size_tokens,
          .num_pages = (options.max_batch_size + 1) *
                       pages_for(options.max_sequence_tokens, options.page_size_tokens)};
}

}  // namespace

Engine::Engine(model::Transformer& transformer, const EngineOptions& options, Allocator& allocator)
    : transformer_(transformer),
      options_(options),
      cache_(cache_options(transformer, transformer.store().dtype(), options), allocator),
      prompt_logits_(allocator, "generation/prompt_logits", DType::kFloat32,
                     {1, transformer.config().vocab_size}) {}

std::vector<Completion> Engine::generate(std::span<const GenerationRequest> requests,
                                         const SamplingParams& params, OpContext& ctx,
                                         const std::function<void(int64_t, int64_t)>& on_finished) {
  int64_t total = 0;
  for (const GenerationRequest& request : requests) {
    const auto length = static_cast<int64_t>(request.prompt_tokens.size());
    CHECK(length >= 1 && length < options_.max_sequence_tokens,
          "prompt of {} tokens; sequences have room for {}", length, options_.max_sequence_tokens);
    total += static_cast<int64_t>(request.sample_indices.size());
  }
  // What an earlier call held when an exception ended it.
  running_.clear();
  cache_.release_all();
  std::vector<Completion> finished;
  size_t next_request = 0;
  Prompt prompt{.request = nullptr, .next_sample = 0, .pages = {}};
  while (static_cast<int64_t>(finished.size()) < total) {
    while (static_cast<int64_t>(running_.size()) < options_.max_batch_size) {
      if (prompt.request == nullptr) {
        while (next_request < requests.size() && requests[next_request].sample_indices.empty()) {
          ++next_request;
        }
        if (next_request == requests.size()) break;
        prompt.request = &requests[next_request++];
        prompt.next_sample = 0;
        prefill(prompt, ctx);
      }
      start_sample(prompt, params, ctx);
      if (prompt.next_sample == prompt.request->sample_indices.size()) {
        cache_.release(prompt.pages);
        prompt.request = nullptr;
      }
    }
    collect_finished(params, finished);
    on_finished(static_cast<int64_t>(finished.size()), total);
    if (!running_.empty()) decode_step(params, ctx);
  }
  std::sort(finished.begin(), finished.end(), [](const Completion& a, const Completion& b) {
    return std::tie(a.tag, a.sample_index) < std::tie(b.tag, b.sample_index);
  });
  return finished;
}

void Engine::rehearse(int64_t num_samples, int64_t longest_prompt, const SamplingParams& params,
                      OpContext& ctx) {
  CHECK(ctx.device.is_rehearsal, "a rehearsal on {}", device_name(ctx.device));
  if (num_samples == 0) return;
  const int64_t num_running = std::min(num_samples, options_.max_batch_size);
  GenerationRequest request{.tag = 0, .draw_index = 0, .prompt_tokens = {}, .sample_indices = {}};
  request.prompt_tokens.assign(static_cast<size_t>(longest_prompt), 0);
  request.sample_indices.assign(static_cast<size_t>(num_running), 0);
  Prompt prompt{.request = &request, .next_sample = 0, .pages = {}};
  prefill(prompt, ctx);
  const int64_t num_drawn =
      std::min(params.max_new_tokens, options_.max_sequence_tokens - longest_prompt);
  for (int64_t i = 0; i < num_running; ++i) {
    start_sample(prompt, params, ctx);
    // The last step runs the last but one token; its row comes on top.
    cache_.extend(running_.back().pages, std::max<int64_t>(0, num_drawn - 2));
  }
  if (num_drawn > 1) decode_step(params, ctx);
  running_.clear();
  cache_.release_all();
}

void Engine::prefill(Prompt& prompt, OpContext& ctx) {
  prompt.pages = cache_.begin_sequence(transformer_.store().version());
  const std::span<const int32_t> tokens(prompt.request->prompt_tokens);
  const auto chunk_tokens = static_cast<size_t>(options_.prefill_chunk_tokens);
  for (size_t begin = 0; begin < tokens.size(); begin += chunk_tokens) {
    const std::span<const int32_t> chunk =
        tokens.subspan(begin, std::min(chunk_tokens, tokens.size() - begin));
    SequencePages* const sequence = &prompt.pages;
    run_rows(prompt_logits_, {&sequence, 1}, {&chunk, 1}, ctx);
  }
  counters_.prefilled_tokens += static_cast<int64_t>(tokens.size());
}

void Engine::start_sample(Prompt& prompt, const SamplingParams& params, OpContext& ctx) {
  const GenerationRequest& request = *prompt.request;
  // prompt_logits_ are as old as the prompt's pages.
  KvCache::check_version(prompt.pages, transformer_.store().version());
  Running running{.request = &request,
                  .pages = cache_.fork(prompt.pages),
                  .completion = {.tag = request.tag,
                                 .sample_index = request.sample_indices[prompt.next_sample++],
                                 .tokens = {},
                                 .logprobs = {},
                                 .cuts = {},
                                 .finish_reason = FinishReason::kLength}};
  std::vector<ops::SampledToken> sampled(1);
  const std::vector<double> uniforms{
      sampling_uniform(params, request.draw_index, running.completion.sample_index, 0)};
  sample_rows(sampled, prompt_logits_, uniforms, params, ctx);
  accept(running, sampled[0], params);
  running_.push_back(std::move(running));
}

void Engine::sample_rows(std::vector<ops::SampledToken>& out, const Tensor& logits,
                         const std::vector<double>& uniforms, const SamplingParams& params,
                         OpContext& ctx) {
  if (params.greedy) {
    ops::argmax_tokens(out.data(), logits, ctx);
  } else {
    ops::sample_tokens(out.data(), logits, uniforms.data(), params.filter, ctx);
  }
}

void Engine::accept(Running& running, const ops::SampledToken& sampled,
                    const SamplingParams& params) {
  running.completion.tokens.push_back(sampled.token);
  running.completion.logprobs.push_back(sampled.logprob);
  const bool filters = params.filter.top_k > 0 || params.filter.top_p < 1.0;
  if (filters && !params.greedy) running.completion.cuts.push_back(sampled.cut);
  ++counters_.generated_tokens;
}

bool Engine::is_finished(Running& running, const SamplingParams& params) const {
  Completion& completion = running.completion;
  const auto& stops = params.stop_token_ids;
  if (!params.ignore_stop &&
      std::find(stops.begin(), stops.end(), completion.tokens.back()) != stops.end()) {
    completion.finish_reason = FinishReason::kStop;
    return true;
  }
  completion.finish_reason = FinishReason::kLength;
  const auto drawn = static_cast<int64_t>(completion.tokens.size());
  const auto length = static_cast<int64_t>(running.request->prompt_tokens.size()) + drawn;
  return drawn >= params.max_new_tokens || length >= options_.max_sequence_tokens;
}

void Engine::collect_finished(const SamplingParams& params, std::vector<Completion>& finished) {
  std::vector<Running> still_running;
  for (Running& running : running_) {
    if (is_finished(running, params)) {
      cache_.release(running.pages);
      finished.push_back(std::move(running.completion));
    } else {
      still_running.push_back(std::move(running));
    }
  }
  running_ = std::move(still_running);
}

void Engine::decode_step(const SamplingParams& params, OpContext& ctx) {
  const Workspace::Scope scope(ctx.workspace);
  const auto rows = static_cast<int64_t>(running_.size());
  const Tensor logits = ctx.workspace.take(
      DType::kFloat32, {rows, transformer_.config().vocab_size}, ScratchOwner::kLogits);
  std::vector<SequencePages*> sequences;
  std::vector<std::span<const int32_t>> tokens;
  std::vector<double> uniforms;
  for (Running& running : running_) {
    sequences.push_back(&running.pages);
    tokens.emplace_back(&running.completion.tokens.back(), 1);
    uniforms.push_back(sampling_uniform(params, running.request->draw_index,
                                        running.completion.sample_index,
                                        static_cast<int64_t>(running.completion.tokens.size())));
  }
  run_rows(logits, sequences, tokens, ctx);
  std::vector<ops::SampledToken> sampled(running_.size());
  sample_rows(sampled, logits, uniforms, params, ctx);
  for (size_t i = 0; i < running_.size(); ++i) accept(running_[i], sampled[i], params);
  ++counters_.decode_steps;
}

void Engine::run_rows(const Tensor& logits, std::span<SequencePages* const> sequences,
                      std::span<const std::span<const int32_t>> tokens, OpContext& ctx) {
  const Workspace::Scope scope(ctx.workspace);
  const uint64_t version = transformer_.store().version();
  for (size_t s = 0; s < sequences.size(); ++s) {
    KvCache::check_version(*sequences[s], version);
    cache_.extend(*sequences[s], static_cast<int64_t>(tokens[s].size()));
  }
  transformer_.forward_cached(logits, place_rows(sequences, tokens, ctx), ctx);
}

// The last rows of sequences that have room for them.
model::CachedRows Engine::place_rows(std::span<SequencePages* const> sequences,
                                     std::span<const std::span<const int32_t>> tokens,
                                     OpContext& ctx) const {
  int64_t num_rows = 0;
  int64_t max_pages = 1;
  int64_t max_query_rows = 0;
  int64_t max_context_tokens = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto count = static_cast<int64_t>(tokens[s].size());
    num_rows += count;
    max_pages = std::max(max_pages, static_cast<int64_t>(sequences[s]->pages.size()));
    max_query_rows = std::max(max_query_rows, count);
    max_context_tokens = std::max(max_context_tokens, sequences[s]->num_tokens);
  }
  const auto num_sequences = static_cast<int64_t>(sequences.size());
  HostInt32Arrays arrays;
  const std::span<int32_t> token_ids = arrays.add({num_rows});
  const std::span<int32_t> places = arrays.add({num_rows, 2});
  const std::span<int32_t> offsets = arrays.add({num_sequences + 1});
  const std::span<int32_t> lengths = arrays.add({num_sequences});
  const std::span<int32_t> first_slots = arrays.add({num_sequences, max_pages});
  const std::span<int32_t> last_rows = arrays.add({num_sequences});
  size_t row = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequencePages& sequence = *sequences[s];
    offsets[s] = static_cast<int32_t>(row);
    lengths[s] = static_cast<int32_t>(sequence.num_tokens);
    const std::span<int32_t> slots = first_slots.subspan(s * static_cast<size_t>(max_pages));
    for (size_t p = 0; p < sequence.pages.size(); ++p) {
      slots[p] = static_cast<int32_t>(sequence.pages[p] * cache_.page_size_tokens());
    }
    int64_t position = sequence.num_tokens - static_cast<int64_t>(tokens[s].size());
    for (const int32_t token : tokens[s]) {
      token_ids[row] = token;
      places[2 * row] = static_cast<int32_t>(position);
      places[2 * row + 1] = cache_.slot(sequence, position);
      ++row;
      ++position;
    }
    last_rows[s] = static_cast<int32_t>(row) - 1;
  }
  offsets[sequences.size()] = static_cast<int32_t>(row);
  const std::vector<Tensor> uploaded =
      arrays.upload(ctx.workspace.take(DType::kInt32, {arrays.num_elements()}), ctx.stream);
  return {.tokens = uploaded[0],
          .positions = uploaded[1],
          .kv = {.keys = {},
                 .values = {},
                 .query_offsets = uploaded[2],
                 .context_lengths = uploaded[3],
                 .page_first_slot = uploaded[4],
                 .page_size_tokens = cache_.page_size_tokens(),
                 .max_query_rows = max_query_rows,
                 .max_context_tokens = max_context_tokens},
          .keys = cache_.keys(),
          .values = cache_.values(),
          .logit_rows = uploaded[5]};
}

}  // namespace grpo::generation
