// T query rows, H query heads, G key/value heads, K head dim, R = H / G heads that share a
// key/value head.
#include <array>
#include <cmath>
#include <limits>

#include "model/ops/cpu/attention_tile.h"
#include "model/ops/cpu/entry_points.h"
#include "model/ops/cpu/lane_sum.h"
#include "model/ops/cpu/scalar_math.h"

namespace grpo::ops::cpu {

namespace {

constexpr auto kTile = static_cast<size_t>(kAttentionTileKeys);
using TileRow = std::array<float, kTile>;

// Running softmax of one query row.
struct RowState {
  float max;
  float sum;
};

// Scratch of one key/value head's block of query positions; rows are (position, head of the group).
struct ForwardScratch {
  float* q;        // [positions][K][R]
  float* sums;     // [positions * R][K padded], unnormalised output
  float* max_sum;  // [positions * R][2]
  float* scores;   // [R][kTile]
  float* weights;  // [kTile][R]
  float* values;   // [kTile][K padded]
  float* keys;     // [kTile][K padded]
  float* keys_t;   // [K][kTile]
};

float tree_max(TileRow values) {
  for (size_t half = kTile / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) {
      values[i] = values[i] > values[i + half] ? values[i] : values[i + half];
    }
  }
  return values[0];
}

// Takes one row's raw scores of a tile into its running softmax. `probabilities` become exp(score -
// max), 0 from num_visible on; returns the factor for what was summed before.
float advance_softmax(RowState& state, TileRow& probabilities, const float* scores, float scale,
                      int64_t num_visible) {
  TileRow scaled;
  for (size_t j = 0; j < kTile; ++j) {
    scaled[j] = static_cast<int64_t>(j) < num_visible ? scores[j] * scale
                                                      : -std::numeric_limits<float>::infinity();
  }
  const float tile_max = tree_max(scaled);
  const float max = tile_max > state.max ? tile_max : state.max;
  for (size_t j = 0; j < kTile; ++j) probabilities[j] = exp_float(scaled[j] - max);
  const float correction = exp_float(state.max - max);
  state.sum = std::fma(state.sum, correction, tree_sum(probabilities));
  state.max = max;
  return correction;
}

// One tile for the R heads of one query position.
void attend_tile(const ForwardScratch& scratch, int64_t position, int64_t num_heads,
                 int64_t head_dim, float scale, int64_t num_visible) {
  const int64_t stride = padded_head_dim(head_dim);
  const int heads = static_cast<int>(num_heads);
  std::fill_n(scratch.scores, num_heads * kAttentionTileKeys, 0.0f);
  panel_product(heads, scratch.scores, kAttentionTileKeys,
                scratch.q + position * head_dim * num_heads, num_heads, scratch.keys_t,
                kAttentionTileKeys, head_dim);
  float* sums = scratch.sums + position * num_heads * stride;
  for (int64_t h = 0; h < num_heads; ++h) {
    float* saved = scratch.max_sum + 2 * (position * num_heads + h);
    RowState state{saved[0], saved[1]};
    TileRow probabilities;
    const float correction = advance_softmax(
        state, probabilities, scratch.scores + h * kAttentionTileKeys, scale, num_visible);
    saved[0] = state.max;
    saved[1] = state.sum;
    for (size_t j = 0; j < kTile; ++j) {
      scratch.weights[static_cast<int64_t>(j) * num_heads + h] = probabilities[j];
    }
    for (int64_t c = 0; c < stride; ++c) sums[h * stride + c] *= correction;
  }
  // Only visible keys are multiplied: what lies behind them may be anything, and would not be there
  // in decode.
  for (int64_t c = 0; c < stride; c += kPanelColumns) {
    panel_product(heads, sums + c, stride, scratch.weights, num_heads, scratch.values + c, stride,
                  num_visible);
  }
}

// Query positions [begin, begin + count) of a sequence, counted from its first row, for one
// key/value head.
template <typename A>
class ForwardBlock {
 public:
  ForwardBlock(const Tensor& out, const Tensor& lse, const Tensor& q, const KvView& kv, float scale,
               const ForwardScratch& scratch, int64_t tile_keys)
      : out_(out),
        lse_(lse),
        q_(q),
        kv_(kv),
        scale_(scale),
        scratch_(scratch),
        tile_keys_(tile_keys),
        head_dim_(q.size(2)),
        group_(q.size(1) / kv.keys.size(1)) {}

  void run(const AttentionSequence& sequence, int64_t head, int64_t begin, int64_t count) const {
    load(sequence, head, begin, count);
    const int64_t num_keys = sequence.first_position + begin + count;
    for (int64_t first = 0; first < num_keys; first += tile_keys_) {
      const int64_t keys = std::min(tile_keys_, num_keys - first);
      pack_tile_rows<A>(scratch_.values, kv_.values, head, sequence, first, keys);
      pack_tile_rows<A>(scratch_.keys, kv_.keys, head, sequence, first, keys);
      transpose_tile(scratch_.keys_t, scratch_.keys, head_dim_);
      for (int64_t p = 0; p < count; ++p) {
        const int64_t visible = sequence.first_position + begin + p + 1 - first;
        if (visible <= 0) continue;
        attend_tile(scratch_, p, group_, head_dim_, scale_, std::min(visible, tile_keys_));
      }
    }
    store(sequence, head, begin, count);
  }

 private:
  int64_t row_offset(const AttentionSequence& sequence, int64_t head, int64_t p) const {
    return (sequence.first_row + p) * q_.size(1) + head * group_;
  }

  void load(const AttentionSequence& sequence, int64_t head, int64_t begin, int64_t count) const {
    for (int64_t p = 0; p < count; ++p) {
      transpose_block(scratch_.q + p * head_dim_ * group_, group_,
                      q_.data<A>() + row_offset(sequence, head, begin + p) * head_dim_, head_dim_,
                      group_, head_dim_);
    }
    std::fill_n(scratch_.sums, count * group_ * padded_head_dim(head_dim_), 0.0f);
    for (int64_t r = 0; r < count * group_; ++r) {
      scratch_.max_sum[2 * r] = -std::numeric_limits<float>::infinity();
      scratch_.max_sum[2 * r + 1] = 0.0f;
    }
  }

  void store(const AttentionSequence& sequence, int64_t head, int64_t begin, int64_t count) const {
    for (int64_t r = 0; r < count * group_; ++r) {
      const int64_t row = row_offset(sequence, head, begin + r / group_) + r % group_;
      const float max = scratch_.max_sum[2 * r];
      const float sum = scratch_.max_sum[2 * r + 1];
      const float* sums = scratch_.sums + r * padded_head_dim(head_dim_);
      A* out_row = out_.data<A>() + row * head_dim_;
      for (int64_t k = 0; k < head_dim_; ++k) out_row[k] = static_cast<A>(sums[k] / sum);
      if (!lse_.is_absent()) {
        lse_.data<float>()[row] =
            static_cast<float>(static_cast<double>(max) + std::log(static_cast<double>(sum)));
      }
    }
  }

  const Tensor& out_;
  const Tensor& lse_;
  const Tensor& q_;
  const KvView& kv_;
  float scale_;
  const ForwardScratch& scratch_;
  int64_t tile_keys_;  // at most kAttentionTileKeys
  int64_t head_dim_;
  int64_t group_;
};

}  // namespace

template <typename A>
void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q, const KvView& kv,
                       float scale, OpContext& ctx) {
  const int64_t head_dim = q.size(2);
  const int64_t stride = padded_head_dim(head_dim);
  const int64_t group = q.size(1) / kv.keys.size(1);
  const int64_t positions = std::max<int64_t>(1, kAttentionRowBlock / group);
  const Workspace::Scope scope(ctx.workspace);
  const auto take = [&](int64_t count) {
    return ctx.workspace.take(DType::kFloat32, {count}).data<float>();
  };
  const ForwardScratch scratch{.q = take(positions * group * head_dim),
                               .sums = take(positions * group * stride),
                               .max_sum = take(positions * group * 2),
                               .scores = take(group * kAttentionTileKeys),
                               .weights = take(group * kAttentionTileKeys),
                               .values = take(kAttentionTileKeys * stride),
                               .keys = take(kAttentionTileKeys * stride),
                               .keys_t = take(kAttentionTileKeys * head_dim)};
  if (ctx.device.is_rehearsal) return;
  const ForwardBlock<A> block(out, lse, q, kv, scale, scratch,
                              ctx.numerics.narrow_kv_tiles ? kNarrowTileKeys : kAttentionTileKeys);
  for (int64_t s = 0; s < kv.context_lengths.size(0); ++s) {
    const AttentionSequence sequence(kv, s);
    for (int64_t head = 0; head < kv.keys.size(1); ++head) {
      for (int64_t begin = 0; begin < sequence.num_rows; begin += positions) {
        block.run(sequence, head, begin, std::min(positions, sequence.num_rows - begin));
      }
    }
  }
}

template void attention_forward<float>(const Tensor&, const Tensor&, const Tensor&, const KvView&,
                                       float, OpContext&);
template void attention_forward<Bfloat16>(const Tensor&, const Tensor&, const Tensor&,
                                          const KvView&, float, OpContext&);

}  // namespace grpo::ops::cpu
