// What every decoder layer of one pass shares, and what a layer keeps for its backward.
// T tokens, D model, H query heads, G key/value heads, K head dim, F feed-forward. A float32 or
// bfloat16.
#pragma once

#include "model/core/kv_view.h"
#include "model/core/tensor.h"

namespace grpo::model {

struct LayerShape {
  int64_t hidden_size;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t intermediate_size;
  float rms_norm_eps;

  int64_t qkv_size() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  float attention_scale() const;  // 1 / sqrt(K)
};

struct LayerInputs {
  Tensor positions;   // [T, 2] int32: position in the sequence, KV slot
  Tensor rope_table;  // [max_positions, K] float32
  KvView kv;          // keys and values are this layer's
};

// Activations a training pass keeps, a set a layer; in the pass's workspace.
struct AttentionActivations {
  Tensor x;       // [T, D] A, the layer's input
  Tensor rstd;    // [T] float32
  Tensor normed;  // [T, D] A
  Tensor q;       // [T, H, K] A
  Tensor keys;    // [T, G, K] A
  Tensor values;  // [T, G, K] A
  Tensor out;     // [T, H, K] A
  Tensor lse;     // [T, H] float32
};

struct MlpActivations {
  Tensor x;        // [T, D] A
  Tensor rstd;     // [T] float32
  Tensor normed;   // [T, D] A
  Tensor gate_up;  // [T, 2F] A
  Tensor gated;    // [T, F] A
};

}  // namespace grpo::model
