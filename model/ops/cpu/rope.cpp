#include <algorithm>

#include "model/core/errors.h"
#include "model/ops/cpu/entry_points.h"

namespace grpo::ops::cpu {

namespace {

// Turns the pairs (i, i + K/2) of one head by +angle or, for the transpose, by -angle.
template <typename A>
void turn_head(A* out, const A* in, const float* angles, int64_t head_dim, float direction) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float cosine = angles[i];
    const float sine = direction * angles[half + i];
    const auto first = static_cast<float>(in[i]);
    const auto second = static_cast<float>(in[half + i]);
    out[i] = static_cast<A>(first * cosine - second * sine);
    out[half + i] = static_cast<A>(second * cosine + first * sine);
  }
}

// The row of the table for token t.
const float* angles_of(const char* op, const Tensor& positions, const Tensor& table, int64_t t) {
  const int32_t position = positions.data<int32_t>()[2 * t];
  CHECK(position >= 0 && position < table.size(0), "{}: position {} of row {} is outside [0, {})",
        op, position, t, table.size(0));
  return table.data<float>() + position * table.size(1);
}

}  // namespace

template <typename A>
void qkv_rope_forward(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                      const Tensor& positions, const Tensor& table) {
  const int64_t q_heads = q.size(1);
  const int64_t kv_heads = keys.size(1);
  const int64_t head_dim = q.size(2);
  for (int64_t t = 0; t < q.size(0); ++t) {
    const float* angles = angles_of("qkv_rope_forward", positions, table, t);
    const int64_t slot = positions.data<int32_t>()[2 * t + 1];
    CHECK(slot >= 0 && slot < keys.size(0),
          "qkv_rope_forward: slot {} of row {} is outside [0, {})", slot, t, keys.size(0));
    const A* source = qkv.data<A>() + t * (q_heads + 2 * kv_heads) * head_dim;
    A* q_row = q.data<A>() + t * q_heads * head_dim;
    A* key_row = keys.data<A>() + slot * kv_heads * head_dim;
    A* value_row = values.data<A>() + slot * kv_heads * head_dim;
    for (int64_t h = 0; h < q_heads; ++h, source += head_dim, q_row += head_dim) {
      turn_head(q_row, source, angles, head_dim, 1.0f);
    }
    for (int64_t g = 0; g < kv_heads; ++g, source += head_dim, key_row += head_dim) {
      turn_head(key_row, source, angles, head_dim, 1.0f);
    }
    std::copy_n(source, kv_heads * head_dim, value_row);
  }
}

template <typename A>
void qkv_rope_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dkeys,
                       const Tensor& dvalues, const Tensor& positions, const Tensor& table) {
  const int64_t q_heads = dq.size(1);
  const int64_t kv_heads = dkeys.size(1);
  const int64_t head_dim = dq.size(2);
  for (int64_t t = 0; t < dq.size(0); ++t) {
    const float* angles = angles_of("qkv_rope_backward", positions, table, t);
    A* out = dqkv.data<A>() + t * (q_heads + 2 * kv_heads) * head_dim;
    const A* dq_row = dq.data<A>() + t * q_heads * head_dim;
    const A* dkey_row = dkeys.data<A>() + t * kv_heads * head_dim;
    for (int64_t h = 0; h < q_heads; ++h, out += head_dim, dq_row += head_dim) {
      turn_head(out, dq_row, angles, head_dim, -1.0f);
    }
    for (int64_t g = 0; g < kv_heads; ++g, out += head_dim, dkey_row += head_dim) {
      turn_head(out, dkey_row, angles, head_dim, -1.0f);
    }
    std::copy_n(dvalues.data<A>() + t * kv_heads * head_dim, kv_heads * head_dim, out);
  }
}

#define GRPO_INSTANTIATE_ROPE(A)                                                                 \
  template void qkv_rope_forward<A>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,  \
                                    const Tensor&, const Tensor&);                               \
  template void qkv_rope_backward<A>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, \
                                     const Tensor&, const Tensor&);
GRPO_INSTANTIATE_ROPE(float)
GRPO_INSTANTIATE_ROPE(Bfloat16)
#undef GRPO_INSTANTIATE_ROPE

}  // namespace grpo::ops::cpu
