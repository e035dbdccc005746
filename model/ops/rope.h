// Rotary position embedding (Su et al., 2021; Hugging Face's half-split pairing: dim i turns with i
// + K/2), fused with the split of the QKV product into queries and key/value slots. T tokens, H
// query heads, G key/value heads, K head dim. A is float32 or bfloat16.
#pragma once

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// Any device. cos in columns [0, K/2), sin in [K/2, K), of position * theta^(-2i/K), computed in
// float32 as Hugging Face does, applied in float32.
void fill_rope_table(const Tensor& table,  // [max_positions, K] float32
                     double theta);

// Splits qkv rows (all q heads, then k heads, then v heads), turns q and k, writes k and v to their
// slots.
void qkv_rope_forward(const Tensor& q,          // [T, H, K] A
                      const Tensor& keys,       // [num_slots, G, K] A
                      const Tensor& values,     // [num_slots, G, K] A
                      const Tensor& qkv,        // [T, (H + 2G) K] A
                      const Tensor& positions,  // [T, 2] int32: position in the sequence, slot
                      const Tensor& table,      // [max_positions, K] float32
                      OpContext& ctx);

// The transpose, for packed keys and values (slot t is row t).
void qkv_rope_backward(const Tensor& dqkv,       // [T, (H + 2G) K] A
                       const Tensor& dq,         // [T, H, K] A
                       const Tensor& dkeys,      // [T, G, K] A
                       const Tensor& dvalues,    // [T, G, K] A
                       const Tensor& positions,  // [T, 2] int32
                       const Tensor& table,      // [max_positions, K] float32
                       OpContext& ctx);

}  // namespace grpo::ops
