// ForwardGraphs: forwards of decode steps on a CUDA device. A shape that comes again is recorded,
// so that the host starts one thing instead of some hundred kernels.
#pragma once

#include <compare>
#include <map>
#include <memory>

#include "model/core/captured_work.h"
#include "model/transformer.h"

namespace grpo::generation {

// One thread; the transformer outlives it. A recorded forward reads the weights where they lie, so
// it is as new as they are; only stores whose weights stay in place are recorded from.
class ForwardGraphs {
 public:
  explicit ForwardGraphs(model::Transformer& transformer) : transformer_(transformer) {}

  // Whether run() records on this device. Shapes then had better repeat.
  bool records(Device device) const;

  // transformer.forward_cached(), whose host-side numbers (`max_query_rows`, `max_context_tokens`)
  // follow from the shapes of `rows`.
  void run(const Tensor& logits,  // [M, V] float32
           const model::CachedRows& rows, OpContext& ctx);

  int64_t num_launches() const { return num_launches_; }  // of recorded forwards

 private:
  // Equal keys have equal operands, at equal places, and scratch at equal places behind them.
  struct Key {
    uint64_t workspace;
    const void* logits;
    const void* tokens;
    int64_t num_rows;
    int64_t max_pages;
    SplitK split_k;
    bool narrow_kv_tiles;

    auto operator<=>(const Key&) const = default;
  };

  model::Transformer& transformer_;
  std::map<Key, std::unique_ptr<CapturedWork>> graphs_;  // null: the shape came once
  int64_t num_launches_ = 0;
};

}  // namespace grpo::generation
