#include "generation/forward_graphs.h"

namespace grpo::generation {

namespace {

// Each holds some megabytes on the host and on the device.
constexpr size_t kMaxShapes = 64;

}  // namespace

bool ForwardGraphs::records(Device device) const {
  return device.kind == DeviceKind::kCuda && transformer_.store().has_fixed_weights();
}

void ForwardGraphs::run(const Tensor& logits, const model::CachedRows& rows, OpContext& ctx) {
  if (!records(ctx.device) || ctx.device.is_rehearsal) {
    transformer_.forward_cached(logits, rows, ctx);
    return;
  }
  const Key key{.workspace = ctx.workspace.id(),
                .logits = logits.raw(),
                .tokens = rows.tokens.raw(),
                .num_rows = rows.tokens.size(0),
                .max_pages = rows.kv.page_first_slot.size(1),
                .split_k = ctx.numerics.split_k,
                .narrow_kv_tiles = ctx.numerics.narrow_kv_tiles};
  const auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    // A first time for itself: it takes memory and chooses algorithms.
    transformer_.forward_cached(logits, rows, ctx);
    if (graphs_.size() == kMaxShapes) graphs_.clear();
    graphs_.emplace(key, nullptr);
    return;
  }
  if (found->second == nullptr) {
    const auto forward = [this, logits, rows, ctx](Stream stream) {
      OpContext recorded = ctx;
      recorded.stream = stream;
      transformer_.forward_cached(logits, rows, recorded);
    };
    found->second = std::make_unique<CapturedWork>(ctx.device, forward);
  }
  found->second->launch(ctx.stream);
  ++num_launches_;
}

}  // namespace grpo::generation
