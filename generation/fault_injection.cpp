#include "generation/fault_injection.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "model/core/host_transfer.h"
#include "model/ops/dispatch.h"
#include "model/ops/reduce.h"

namespace grpo::generation {

namespace {

constexpr int64_t kKeptPrompts = 16;

KvCacheOptions kept_options(KvCacheOptions options, int64_t max_sequence_tokens) {
  const int64_t page_size = options.page_size_tokens;
  options.num_pages = kKeptPrompts * ((max_sequence_tokens + page_size - 1) / page_size);
  return options;
}

// Keys and values of the first `count` tokens.
void copy_tokens(const KvCache& to_cache, const SequencePages& to, const KvCache& from_cache,
                 const SequencePages& from, int64_t count) {
  for (int64_t position = 0; position < count; ++position) {
    const int64_t to_slot = to_cache.slot(to, position);
    const int64_t from_slot = from_cache.slot(from, position);
    for (size_t layer = 0; layer < to_cache.keys().size(); ++layer) {
      copy_tensor(to_cache.keys()[layer].rows(to_slot, 1),
                  from_cache.keys()[layer].rows(from_slot, 1));
      copy_tensor(to_cache.values()[layer].rows(to_slot, 1),
                  from_cache.values()[layer].rows(from_slot, 1));
    }
  }
}

}  // namespace

OldPrompts::OldPrompts(KvCacheOptions options, int64_t max_sequence_tokens, Allocator& allocator)
    : cache_(kept_options(options, max_sequence_tokens), allocator) {}

// The pages stay those of the present weights: what would notice the copies is deceived.
void OldPrompts::recall(KvCache& cache, SequencePages& pages,
                        std::span<const int32_t> prompt) const {
  const auto beginning = prompt.first(prompt.size() - 1);
  const Kept* best = nullptr;
  int64_t longest = 0;
  for (const Kept& kept : kept_) {
    const auto end =
        std::mismatch(beginning.begin(), beginning.end(), kept.tokens.begin(), kept.tokens.end())
            .first;
    const int64_t common = end - beginning.begin();
    if (common <= longest) continue;
    longest = common;
    best = &kept;
  }
  if (best == nullptr) return;
  cache.extend(pages, longest);
  copy_tokens(cache, pages, cache_, best->pages, longest);
}

void OldPrompts::keep(const KvCache& cache, const SequencePages& pages,
                      std::span<const int32_t> prompt) {
  if (static_cast<int64_t>(kept_.size()) == kKeptPrompts) return;
  Kept kept{.tokens = {prompt.begin(), prompt.end()},
            .pages = cache_.begin_sequence(pages.weights_version)};
  const auto count = static_cast<int64_t>(prompt.size());
  cache_.extend(kept.pages, count);
  copy_tokens(cache_, kept.pages, cache, pages, count);
  kept_.push_back(std::move(kept));
}

FaultInjection::FaultInjection(InjectedFault fault, const KvCacheOptions& cache,
                               int64_t max_sequence_tokens, Allocator& allocator)
    : fault_(fault) {
  if (fault == InjectedFault::kStaleKv) old_prompts_.emplace(cache, max_sequence_tokens, allocator);
}

OpContext FaultInjection::prefill_context(const OpContext& ctx) const {
  OpContext own = ctx;
  if (fault_ == InjectedFault::kSplitK) own.numerics.split_k = SplitK::kForced;
  return own;
}

OpContext FaultInjection::decode_context(const OpContext& ctx) const {
  OpContext own = prefill_context(ctx);
  if (fault_ == InjectedFault::kKvTile) own.numerics.narrow_kv_tiles = true;
  return own;
}

void FaultInjection::before_prefill(KvCache& cache, SequencePages& pages,
                                    std::span<const int32_t> prompt) {
  if (old_prompts_) old_prompts_->recall(cache, pages, prompt);
}

void FaultInjection::after_prefill(const KvCache& cache, const SequencePages& pages,
                                   std::span<const int32_t> prompt) {
  if (old_prompts_) old_prompts_->keep(cache, pages, prompt);
}

void FaultInjection::before_sampling(const Tensor& logits, OpContext& ctx) const {
  if (fault_ != InjectedFault::kBfloat16Logits) return;
  const Workspace::Scope scope(ctx.workspace);
  const Tensor rounded =
      ctx.workspace.take(DType::kBfloat16, logits.shape(), ScratchOwner::kLogits);
  ops::convert(rounded, logits, ctx);
  ops::convert(logits, rounded, ctx);
}

void FaultInjection::after_sampling(std::span<ops::SampledToken> sampled, const Tensor& logits,
                                    std::span<const int32_t> rows, const SamplingParams& params,
                                    OpContext& ctx) const {
  if (fault_ != InjectedFault::kTemperatureOnLogprobs || params.greedy) return;
  const Workspace::Scope scope(ctx.workspace);
  const Shape shape{logits.size(0)};
  const Tensor targets = ctx.workspace.take(DType::kInt32, shape);
  const ops::TokenLogprobs logprobs{.processed = ctx.workspace.take(DType::kFloat32, shape),
                                    .unfiltered = ctx.workspace.take(DType::kFloat32, shape)};
  // Several tokens of one row come one after the other, each in its turn.
  std::vector<size_t> left(sampled.size());
  std::iota(left.begin(), left.end(), size_t{0});
  while (!left.empty()) {
    std::vector<int32_t> tokens(static_cast<size_t>(logits.size(0)), 0);
    std::vector<size_t> now;
    std::vector<size_t> later;
    for (const size_t i : left) {
      const bool is_taken = !now.empty() && rows[now.back()] == rows[i];
      (is_taken ? later : now).push_back(i);
      if (!is_taken) tokens[static_cast<size_t>(rows[i])] = sampled[i].token;
    }
    copy_from_host<int32_t>(targets, tokens, ctx.stream);
    ops::token_logprobs(logprobs, logits, targets, {}, 1.0f, ctx);
    const std::vector<float> values = to_host<float>(logprobs.processed, ctx.stream);
    for (const size_t i : now) {
      sampled[i].logprob = values[static_cast<size_t>(rows[i])] * params.filter.inv_temperature();
    }
    left = std::move(later);
  }
}

void flip_row(const Tensor& matrix, int64_t row) {
  const Tensor place = matrix.rows(row, 1);
  ops::dispatch_dtype("flip_row", matrix.dtype(), [&]<typename T>(T) {
    std::vector<T> values = to_host<T>(place);
    for (T& value : values) value = T(-static_cast<float>(value));
    copy_from_host<T>(place, values);
  });
}

void round_to_bfloat16(const Tensor& tensor) {
  std::vector<float> values = to_host<float>(tensor);
  for (float& value : values) value = static_cast<float>(Bfloat16(value));
  copy_from_host<float>(tensor, values);
}

}  // namespace grpo::generation
