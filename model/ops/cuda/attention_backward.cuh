// What the kernels behind attention_backward share on tensor cores. Rows are heads of a group
// within positions. Each kernel recomputes the weights P = exp(scale q k^T - lse) and dS = P (dout
// v^T - delta), delta = sum dout out; P and dS are rounded to bfloat16 as factors. The scale is
// applied to the sums.
//
// A row or key behind the sequence's end is zeros, and so are its lse and delta: its dS is 0, and
// what it adds to another's sums is 0.
#pragma once

#include "model/ops/cuda/attention_tile.cuh"

namespace grpo::ops::cuda {

constexpr int kBackwardWarps = 4;
constexpr int kBackwardThreads = kBackwardWarps * 32;
constexpr int kBackwardBlocks = 2;  // that registers leave room for on a multiprocessor

// What a warp works on at a time: as much as its registers hold.
template <int kDim>
struct WarpBlock {
  static constexpr int kM = kDim == 64 ? 2 : 1;          // of 16 keys, or rows, that own sums
  static constexpr int kColumns = kDim == 64 ? 32 : 64;  // rows, or keys, met at once
};

// What a row's dS needs besides products.
struct BackwardStatistics {
  float lse_log2;  // lse * log2(e)
  float delta;
};

struct BackwardOperands {
  AttentionView view;
  __nv_bfloat16* dq;                     // [T, H, K]
  __nv_bfloat16* dkeys;                  // [T, G, K]
  __nv_bfloat16* dvalues;                // [T, G, K]
  const __nv_bfloat16* q;                // [T, H, K]
  const __nv_bfloat16* keys;             // [T, G, K]
  const __nv_bfloat16* values;           // [T, G, K]
  const __nv_bfloat16* dout;             // [T, H, K]
  const BackwardStatistics* statistics;  // [T, H]
  float scale;
  float scale_log2;  // scale * log2(e)
  int64_t longest;   // positions of the longest sequence
};

// Of keys and values: a block a tile of 64 keys, all rows that see them in ascending order.
void launch_key_gradients(const char* op, const BackwardOperands& operands, OpContext& ctx);
// Of queries: a block a few rows, all keys they see in ascending order.
void launch_query_gradient(const char* op, const BackwardOperands& operands, OpContext& ctx);

template <int kDim>
__device__ inline void scale_sums(float (&sums)[kDim / 8][4], float scale) {
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = __fmul_rn(sums[n][i], scale);
  }
}

// Index of a key of this head into [T, G].
__device__ inline int64_t key_index(const AttentionView& view, const DeviceSequence& sequence,
                                    int head, int key) {
  return (sequence.first_query + key) * view.kv_heads + head;
}

// A score's weight and the gradient of the score, from dout v^T in ds.
__device__ inline void score_gradient(float& score, float& ds, const BackwardStatistics& row,
                                      float scale_log2) {
  score = exp2_fast(__fmaf_rn(score, scale_log2, -row.lse_log2));
  ds = __fmul_rn(score, __fsub_rn(ds, row.delta));
}

}  // namespace grpo::ops::cuda
