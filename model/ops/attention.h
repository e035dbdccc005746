// Causal grouped-query attention over a KvView, batch-invariant (numerics contract 2).
// T query rows, H query heads, G key/value heads, K head dim (a multiple of 8). A is float32 or
// bfloat16.
#pragma once

#include "model/core/kv_view.h"
#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// Keys are walked in tiles of kAttentionTileKeys anchored at the sequence start, left to right,
// with a running maximum and sum per row, so that a row's bits depend on its own sequence up to its
// own position alone: packed, paged, prefilled in chunks and decoded rows agree. Query row i of
// sequence s (counted from its first row) stands at position context_lengths[s] - (its number of
// rows) + i and sees keys up to itself.
//
// On a GPU float32, and bfloat16 of other head dims than 64 and 128, get the CPU's bits (lse within
// a rounding). bfloat16 of 64 and 128 goes to the tensor cores, in tiles of 64 keys, with softmax
// weights rounded to bfloat16; there `scale` is positive and operands begin at multiples of 16
// bytes.
constexpr int kAttentionTileKeys = 32;
// Under Numerics::narrow_kv_tiles: other bits from the fifth key on, on every device.
constexpr int kNarrowTileKeys = 4;

void attention_forward(const Tensor& out,  // [T, H, K] A
                       const Tensor& lse,  // [T, H] float32 log-sum-exp of scaled scores, or absent
                       const Tensor& q,    // [T, H, K] A
                       const KvView& kv, float scale, OpContext& ctx);

struct AttentionGradients {
  Tensor dq;       // [T, H, K] A
  Tensor dkeys;    // [T, G, K] A
  Tensor dvalues;  // [T, G, K] A
};

struct AttentionSaved {
  Tensor q;    // [T, H, K] A
  Tensor out;  // [T, H, K] A
  Tensor lse;  // [T, H] float32
};

// For packed sequences only: every query row is also a key (context length == number of rows, one
// page).
void attention_backward(const AttentionGradients& gradients,
                        const Tensor& dout,  // [T, H, K] A
                        const AttentionSaved& saved, const KvView& kv, float scale, OpContext& ctx);

}  // namespace grpo::ops
