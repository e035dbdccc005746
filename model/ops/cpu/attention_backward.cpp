// T query rows, H query heads, G key/value heads, K head dim, R = H / G heads that share a
// key/value head. With P = exp(scale q k^T - lse): dV = P^T dout, dP = dout V^T, dS = scale P (dP -
// sum_k dout out), dQ = dS K, dK = dS^T Q. Tiles of keys outermost, so that dK and dV of a tile are
// finished in one go.
#include <cmath>

#include "model/ops/cpu/attention_tile.h"
#include "model/ops/cpu/entry_points.h"
#include "model/ops/cpu/lane_sum.h"
#include "model/ops/cpu/scalar_math.h"

namespace grpo::ops::cpu {

namespace {

// Scratch of one (sequence, key/value head). A block is up to kAttentionRowBlock rows (position,
// head of the group).
struct BackwardScratch {
  float* dq;        // [num_rows * R][K padded], summed over tiles
  float* delta;     // [num_rows * R], sum_k dout out
  float* q;         // [block][K padded]
  float* dout;      // [block][K padded]
  float* q_t;       // [K][block]
  float* dout_t;    // [K][block]
  float* p;         // [block][tile]
  float* ds;        // [block][tile]
  float* ds_t;      // [tile][block]
  float* keys;      // [tile][K padded]
  float* keys_t;    // [K][tile]
  float* values;    // [tile][K padded]
  float* values_t;  // [K][tile]
  float* dkeys;     // [tile][K padded]
  float* dvalues;   // [tile][K padded]
};

// c [rows][columns] += a^T b, columns a multiple of the panel's.
void product(int64_t rows, int64_t columns, float* c, const float* a, int64_t a_stride,
             const float* b, int64_t depth) {
  for (int64_t column = 0; column < columns; column += kPanelColumns) {
    panel_product(static_cast<int>(rows), c + column, columns, a, a_stride, b + column, columns,
                  depth);
  }
}

template <typename A>
class BackwardHead {
 public:
  BackwardHead(const AttentionGradients& gradients, const Tensor& dout, const AttentionSaved& saved,
               const KvView& kv, float scale, const BackwardScratch& scratch)
      : gradients_(gradients),
        dout_(dout),
        saved_(saved),
        kv_(kv),
        scale_(scale),
        scratch_(scratch),
        head_dim_(dout.size(2)),
        stride_(padded_head_dim(head_dim_)),
        group_(dout.size(1) / kv.keys.size(1)) {}

  void run(const AttentionSequence& sequence, int64_t head) const {
    const int64_t num_rows = sequence.num_rows * group_;
    compute_delta(sequence, head);
    std::fill_n(scratch_.dq, num_rows * stride_, 0.0f);
    const int64_t positions = std::max<int64_t>(1, kAttentionRowBlock / group_);
    for (int64_t first = 0; first < sequence.num_rows; first += kAttentionTileKeys) {
      const int64_t keys = std::min<int64_t>(kAttentionTileKeys, sequence.num_rows - first);
      load_tile(sequence, head, first, keys);
      // Rows before the tile see none of its keys.
      for (int64_t begin = first; begin < sequence.num_rows; begin += positions) {
        run_block(sequence, head, first, begin, std::min(positions, sequence.num_rows - begin));
      }
      store_rows(gradients_.dkeys, sequence, head, first, keys, scratch_.dkeys);
      store_rows(gradients_.dvalues, sequence, head, first, keys, scratch_.dvalues);
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* sums = scratch_.dq + r * stride_;
      A* out = gradients_.dq.data<A>() + query_row(sequence, head, r) * head_dim_;
      for (int64_t k = 0; k < head_dim_; ++k) out[k] = static_cast<A>(sums[k]);
    }
  }

 private:
  // Row r of (position, head of the group) as an index into [T, H].
  int64_t query_row(const AttentionSequence& sequence, int64_t head, int64_t r) const {
    return (sequence.first_row + r / group_) * dout_.size(1) + head * group_ + r % group_;
  }

  void compute_delta(const AttentionSequence& sequence, int64_t head) const {
    for (int64_t r = 0; r < sequence.num_rows * group_; ++r) {
      const A* dout = dout_.data<A>() + query_row(sequence, head, r) * head_dim_;
      const A* out = saved_.out.data<A>() + query_row(sequence, head, r) * head_dim_;
      scratch_.delta[r] = lane_dot(
          head_dim_, [dout](int64_t k) { return static_cast<float>(dout[k]); },
          [out](int64_t k) { return static_cast<float>(out[k]); });
    }
  }

  void load_tile(const AttentionSequence& sequence, int64_t head, int64_t first,
                 int64_t keys) const {
    pack_tile_rows<A>(scratch_.keys, kv_.keys, head, sequence, first, keys);
    pack_tile_rows<A>(scratch_.values, kv_.values, head, sequence, first, keys);
    transpose_tile(scratch_.keys_t, scratch_.keys, head_dim_);
    transpose_tile(scratch_.values_t, scratch_.values, head_dim_);
    std::fill_n(scratch_.dkeys, kAttentionTileKeys * stride_, 0.0f);
    std::fill_n(scratch_.dvalues, kAttentionTileKeys * stride_, 0.0f);
  }

  // Copies the block's rows of a [T, H, K] tensor, as they are and transposed.
  void load_rows(float* rows, float* transposed, const Tensor& tensor,
                 const AttentionSequence& sequence, int64_t head, int64_t first_row,
                 int64_t count) const {
    std::fill_n(rows, count * stride_, 0.0f);
    for (int64_t r = 0; r < count; ++r) {
      copy_block(rows + r * stride_, stride_,
                 tensor.data<A>() + query_row(sequence, head, first_row + r) * head_dim_, head_dim_,
                 1, head_dim_);
    }
    transpose_block(transposed, count, rows, stride_, count, head_dim_);
  }

  // Adds what query positions [begin, begin + count) and the tile of keys at `first` give each
  // other.
  void run_block(const AttentionSequence& sequence, int64_t head, int64_t first, int64_t begin,
                 int64_t count) const {
    const int64_t rows = count * group_;
    load_rows(scratch_.q, scratch_.q_t, saved_.q, sequence, head, begin * group_, rows);
    load_rows(scratch_.dout, scratch_.dout_t, dout_, sequence, head, begin * group_, rows);
    std::fill_n(scratch_.p, rows * kAttentionTileKeys, 0.0f);
    std::fill_n(scratch_.ds, rows * kAttentionTileKeys, 0.0f);
    product(rows, kAttentionTileKeys, scratch_.p, scratch_.q_t, rows, scratch_.keys_t, head_dim_);
    product(rows, kAttentionTileKeys, scratch_.ds, scratch_.dout_t, rows, scratch_.values_t,
            head_dim_);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t visible = begin + r / group_ + 1 - first;
      const float lse = saved_.lse.data<float>()[query_row(sequence, head, begin * group_ + r)];
      const float delta = scratch_.delta[begin * group_ + r];
      float* p = scratch_.p + r * kAttentionTileKeys;
      float* ds = scratch_.ds + r * kAttentionTileKeys;
      for (int64_t j = 0; j < kAttentionTileKeys; ++j) {
        const float probability = exp_float(p[j] * scale_ - lse);
        p[j] = j < visible ? probability : 0.0f;
        ds[j] = j < visible ? probability * (ds[j] - delta) * scale_ : 0.0f;
      }
    }
    transpose_block(scratch_.ds_t, rows, scratch_.ds, kAttentionTileKeys, rows, kAttentionTileKeys);
    product(rows, stride_, scratch_.dq + begin * group_ * stride_, scratch_.ds_t, rows,
            scratch_.keys, kAttentionTileKeys);
    product(kAttentionTileKeys, stride_, scratch_.dvalues, scratch_.p, kAttentionTileKeys,
            scratch_.dout, rows);
    product(kAttentionTileKeys, stride_, scratch_.dkeys, scratch_.ds, kAttentionTileKeys,
            scratch_.q, rows);
  }

  void store_rows(const Tensor& gradient, const AttentionSequence& sequence, int64_t head,
                  int64_t first, int64_t count, const float* sums) const {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t row = (sequence.first_row + first + j) * kv_.keys.size(1) + head;
      A* out = gradient.data<A>() + row * head_dim_;
      for (int64_t k = 0; k < head_dim_; ++k) out[k] = static_cast<A>(sums[j * stride_ + k]);
    }
  }

  const AttentionGradients& gradients_;
  const Tensor& dout_;
  const AttentionSaved& saved_;
  const KvView& kv_;
  float scale_;
  const BackwardScratch& scratch_;
  int64_t head_dim_;
  int64_t stride_;
  int64_t group_;
};

}  // namespace

template <typename A>
void attention_backward(const AttentionGradients& gradients, const Tensor& dout,
                        const AttentionSaved& saved, const KvView& kv, float scale,
                        OpContext& ctx) {
  const int64_t head_dim = dout.size(2);
  const int64_t stride = padded_head_dim(head_dim);
  const int64_t group = dout.size(1) / kv.keys.size(1);
  const int64_t block = std::max(group, kAttentionRowBlock);
  int64_t most_rows = 0;
  for (int64_t s = 0; s < kv.context_lengths.size(0); ++s) {
    most_rows = std::max(most_rows, AttentionSequence(kv, s).num_rows * group);
  }
  const Workspace::Scope scope(ctx.workspace);
  const auto take = [&](int64_t count) {
    return ctx.workspace.take(DType::kFloat32, {count}).data<float>();
  };
  constexpr int64_t kTile = kAttentionTileKeys;
  const BackwardScratch scratch{.dq = take(most_rows * stride),
                                .delta = take(most_rows),
                                .q = take(block * stride),
                                .dout = take(block * stride),
                                .q_t = take(block * head_dim),
                                .dout_t = take(block * head_dim),
                                .p = take(block * kTile),
                                .ds = take(block * kTile),
                                .ds_t = take(block * kTile),
                                .keys = take(kTile * stride),
                                .keys_t = take(kTile * head_dim),
                                .values = take(kTile * stride),
                                .values_t = take(kTile * head_dim),
                                .dkeys = take(kTile * stride),
                                .dvalues = take(kTile * stride)};
  if (ctx.device.is_rehearsal) return;
  const BackwardHead<A> backward(gradients, dout, saved, kv, scale, scratch);
  for (int64_t s = 0; s < kv.context_lengths.size(0); ++s) {
    const AttentionSequence sequence(kv, s);
    for (int64_t head = 0; head < kv.keys.size(1); ++head) backward.run(sequence, head);
  }
}

template void attention_backward<float>(const AttentionGradients&, const Tensor&,
                                        const AttentionSaved&, const KvView&, float, OpContext&);
template void attention_backward<Bfloat16>(const AttentionGradients&, const Tensor&,
                                           const AttentionSaved&, const KvView&, float, OpContext&);

}  // namespace grpo::ops::cpu
