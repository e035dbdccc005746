// What an InjectedFault breaks: the engine's work through FaultInjection, tensors of the generation
// model through the functions below.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "generation/injected_fault.h"
#include "generation/kv_cache.h"
#include "generation/sequence.h"
#include "model/ops/op_context.h"
#include "model/ops/sampler.h"

namespace grpo::generation {

// Keys and values of the first prompts, kept for good: the fault kStaleKv.
class OldPrompts {
 public:
  // Like the engine's cache, but for its size.
  OldPrompts(KvCacheOptions options, int64_t max_sequence_tokens, Allocator& allocator);

  // Puts what is kept of the prompt's longest known beginning, all but its last token at most, into
  // its empty pages.
  void recall(KvCache& cache, SequencePages& pages, std::span<const int32_t> prompt) const;
  // Keeps a prefilled prompt while there is room.
  void keep(const KvCache& cache, const SequencePages& pages, std::span<const int32_t> prompt);

 private:
  struct Kept {
    std::vector<int32_t> tokens;
    SequencePages pages;
  };

  KvCache cache_;
  std::vector<Kept> kept_;
};

// Owned by the engine, which calls it at each of these places; does nothing without a fault.
class FaultInjection {
 public:
  FaultInjection(InjectedFault fault, const KvCacheOptions& cache, int64_t max_sequence_tokens,
                 Allocator& allocator);

  OpContext prefill_context(const OpContext& ctx) const;
  OpContext decode_context(const OpContext& ctx) const;
  void before_prefill(KvCache& cache, SequencePages& pages, std::span<const int32_t> prompt);
  void after_prefill(const KvCache& cache, const SequencePages& pages,
                     std::span<const int32_t> prompt);
  void before_sampling(const Tensor& logits,  // [M, V] float32
                       OpContext& ctx) const;
  // Token i was drawn from row rows[i] of the logits.
  void after_sampling(std::span<ops::SampledToken> sampled,  // [N]
                      const Tensor& logits,                  // [M, V] float32
                      std::span<const int32_t> rows,         // [N]
                      const SamplingParams& params, OpContext& ctx) const;
  bool hands_over_kept_tokens() const { return fault_ != InjectedFault::kTopPOneSide; }

 private:
  InjectedFault fault_;
  std::optional<OldPrompts> old_prompts_;
};

// Through the host, so on every device.
void flip_row(const Tensor& matrix,  // [rows, cols] float32 or bfloat16
              int64_t row);
void round_to_bfloat16(const Tensor& tensor);  // float32

}  // namespace grpo::generation
