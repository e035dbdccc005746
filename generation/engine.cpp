#include "generation/engine.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>
#include <utility>

#include "model/ops/matrix_library.h"

namespace grpo::generation {

namespace {

// Prompts wait until this share of the batch is free, so that several run together.
constexpr int64_t kRefillShare = 8;

int64_t pages_for(int64_t tokens, int64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

KvCacheOptions cache_options(const model::Transformer& transformer, DType dtype,
                             const EngineOptions& options) {
  const model::ModelConfig& c = transformer.config();
  // One place more than the batch: a prompt keeps its pages until all of its samples have started.
  // Those that run together are no more than the places that they are for.
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
      fault_(options.fault, cache_options(transformer, transformer.store().dtype(), options),
             options.max_sequence_tokens, allocator),
      graphs_(transformer),
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
  waiting_.reset();
  cache_.release_all();
  std::vector<Completion> finished;
  PromptQueue queue(requests);
  while (static_cast<int64_t>(finished.size()) < total) {
    if (refill_is_due()) fill_places(queue, params, ctx);
    collect_finished(params, finished);
    on_finished(static_cast<int64_t>(finished.size()), total);
    if (!running_.empty()) decode_step(params, ctx);
  }
  std::sort(finished.begin(), finished.end(), [](const Completion& a, const Completion& b) {
    return std::tie(a.tag, a.sample_index) < std::tie(b.tag, b.sample_index);
  });
  return finished;
}

int64_t Engine::num_free_places() const {
  return options_.max_batch_size - static_cast<int64_t>(running_.size());
}

bool Engine::refill_is_due() const {
  return num_free_places() >= std::max<int64_t>(1, options_.max_batch_size / kRefillShare);
}

void Engine::fill_places(PromptQueue& queue, const SamplingParams& params, OpContext& ctx) {
  if (waiting_) {
    start_samples({&*waiting_, 1}, prompt_logits_, params, ctx);
    if (waiting_->num_waiting_samples() > 0) return;
    waiting_.reset();
  }
  std::vector<WaitingPrompt> prompts =
      queue.take(num_free_places(), cache_, transformer_.store().version());
  prefill(prompts, params, ctx);
  if (!prompts.empty() && prompts.back().num_waiting_samples() > 0) {
    waiting_ = std::move(prompts.back());
  }
}

void Engine::prefill(std::span<WaitingPrompt> prompts, const SamplingParams& params,
                     OpContext& ctx) {
  for (WaitingPrompt& prompt : prompts) {
    fault_.before_prefill(cache_, prompt.pages, prompt.request->prompt_tokens);
  }
  OpContext pass_ctx = fault_.prefill_context(ctx);
  while (!prompts.empty()) {
    const Workspace::Scope scope(ctx.workspace);
    const std::vector<SequenceRows> chunk =
        next_prompt_chunk(prompts, options_.prefill_chunk_tokens);
    int64_t num_ended = 0;
    for (const SequenceRows& rows : chunk) {
      counters_.prefilled_tokens += static_cast<int64_t>(rows.tokens.size());
      num_ended += rows.wants_logits ? 1 : 0;
    }
    ++counters_.prefill_chunks;
    const Tensor logits = take_logits(num_ended, ctx);
    run_rows(logits, chunk, {}, pass_ctx);
    const auto ended = prompts.first(static_cast<size_t>(num_ended));
    for (const WaitingPrompt& prompt : ended) {
      fault_.after_prefill(cache_, prompt.pages, prompt.request->prompt_tokens);
    }
    start_samples(ended, logits, params, ctx);
    if (!ended.empty() && ended.back().num_waiting_samples() > 0) {
      copy_tensor(prompt_logits_, logits.rows(num_ended - 1, 1), ctx.stream);
    }
    prompts = prompts.subspan(ended.size());
  }
}

// As many as there are places for. `logits` [prompts, V]
void Engine::start_samples(std::span<WaitingPrompt> prompts, const Tensor& logits,
                           const SamplingParams& params, OpContext& ctx) {
  const size_t first = running_.size();
  std::vector<int32_t> rows;
  std::vector<const SequencePages*> forked;
  for (size_t row = 0; row < prompts.size(); ++row) {
    WaitingPrompt& prompt = prompts[row];
    // The logits are as old as the prompt's pages.
    KvCache::check_version(prompt.pages, transformer_.store().version());
    while (num_free_places() > 0 && prompt.num_waiting_samples() > 0) {
      const GenerationRequest& request = *prompt.request;
      running_.push_back(
          {.request = &request,
           .pages = {},
           .completion = {.tag = request.tag,
                          .sample_index = request.sample_indices[prompt.next_sample++],
                          .tokens = {},
                          .logprobs = {},
                          .kept = {},
                          .finish_reason = FinishReason::kLength}});
      rows.push_back(static_cast<int32_t>(row));
      // The last sample takes over the prompt's own pages.
      if (prompt.num_waiting_samples() > 0) forked.push_back(&prompt.pages);
    }
  }
  std::vector<SequencePages> forks = cache_.fork(forked, ctx);
  auto fork = forks.begin();
  for (size_t i = 0; i < rows.size(); ++i) {
    WaitingPrompt& prompt = prompts[static_cast<size_t>(rows[i])];
    const bool takes_over =
        prompt.num_waiting_samples() == 0 && (i + 1 == rows.size() || rows[i + 1] != rows[i]);
    running_[first + i].pages = std::move(takes_over ? prompt.pages : *fork++);
  }
  draw_tokens(std::span(running_).subspan(first), logits, rows, params, ctx);
}

void Engine::decode_step(const SamplingParams& params, OpContext& ctx) {
  const Workspace::Scope scope(ctx.workspace);
  std::vector<SequenceRows> rows;
  rows.reserve(running_.size());
  int64_t context_tokens = 0;
  for (Running& running : running_) {
    rows.push_back({.pages = &running.pages,
                    .tokens = {&running.completion.tokens.back(), 1},
                    .wants_logits = true});
    context_tokens = std::max(context_tokens, running.pages.num_tokens + 1);
  }
  const auto num_rows = static_cast<int64_t>(rows.size());
  const RowPadding padding = decode_padding(num_rows, context_tokens, ctx.device);
  const Tensor logits = take_logits(std::max(num_rows, padding.num_sequences), ctx);
  OpContext pass_ctx = fault_.decode_context(ctx);
  run_rows(logits, std::move(rows), padding, pass_ctx);
  std::vector<int32_t> logit_rows(running_.size());
  std::iota(logit_rows.begin(), logit_rows.end(), 0);
  draw_tokens(running_, logits.rows(0, num_rows), logit_rows, params, ctx);
  ++counters_.decode_steps;
}

Tensor Engine::take_logits(int64_t num_rows, OpContext& ctx) const {
  return ctx.workspace.take(DType::kFloat32, {num_rows, transformer_.config().vocab_size},
                            ScratchOwner::kLogits);
}

// Few shapes, so that decode steps repeat them, where they are recorded.
RowPadding Engine::decode_padding(int64_t num_sequences, int64_t context_tokens,
                                  Device device) const {
  if (options_.enforce_eager || !graphs_.records(device)) return {};
  const auto pages = static_cast<uint64_t>(pages_for(context_tokens, options_.page_size_tokens));
  return {
      .num_sequences = std::min(row_bucket(num_sequences), options_.max_batch_size),
      .num_pages = std::min(static_cast<int64_t>(std::bit_ceil(pages)),
                            pages_for(options_.max_sequence_tokens, options_.page_size_tokens))};
}

void Engine::run_rows(const Tensor& logits, std::vector<SequenceRows> rows,
                      const RowPadding& padding, OpContext& ctx) {
  const Workspace::Scope scope(ctx.workspace);
  const model::CachedRows placed =
      place_rows(cache_, std::move(rows), transformer_.store().version(), padding, ctx);
  if (padding.num_sequences == 0) {
    transformer_.forward_cached(logits, placed, ctx);
  } else {
    graphs_.run(logits, placed, ctx);
    counters_.graph_launches = graphs_.num_launches();
  }
  fault_.before_sampling(logits, ctx);
}

// The next token of each, from row rows[i] of the logits.
void Engine::draw_tokens(std::span<Running> running, const Tensor& logits,
                         std::span<const int32_t> rows, const SamplingParams& params,
                         OpContext& ctx) {
  std::vector<ops::SampledToken> sampled(running.size());
  ops::KeptTokens kept;  // by row of the logits
  const bool stores_kept = params.stores_kept_tokens && !params.greedy && params.filter.is_on() &&
                           fault_.hands_over_kept_tokens();
  if (params.greedy) {
    std::vector<ops::SampledToken> largest(static_cast<size_t>(logits.size(0)));
    ops::argmax_tokens(largest.data(), logits, ctx);
    for (size_t i = 0; i < rows.size(); ++i) sampled[i] = largest[static_cast<size_t>(rows[i])];
  } else {
    std::vector<ops::TokenDraw> draws;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Completion& completion = running[i].completion;
      draws.push_back({.uniform = sampling_uniform(params, running[i].request->draw_index,
                                                   completion.sample_index,
                                                   static_cast<int64_t>(completion.tokens.size())),
                       .row = rows[i]});
    }
    ops::sample_tokens(sampled.data(), stores_kept ? &kept : nullptr, logits, draws, params.filter,
                       ctx);
  }
  fault_.after_sampling(sampled, logits, rows, params, ctx);
  for (size_t i = 0; i < running.size(); ++i) {
    accept(running[i], sampled[i]);
    if (stores_kept) running[i].completion.kept.append_row(kept.view(), rows[i]);
  }
}

void Engine::accept(Running& running, const ops::SampledToken& sampled) {
  running.completion.tokens.push_back(sampled.token);
  running.completion.logprobs.push_back(sampled.logprob);
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
  size_t num_kept = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (is_finished(running_[i], params)) {
      cache_.release(running_[i].pages);
      finished.push_back(std::move(running_[i].completion));
    } else {
      if (num_kept != i) running_[num_kept] = std::move(running_[i]);
      ++num_kept;
    }
  }
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(num_kept), running_.end());
}

}  // namespace grpo::generation
