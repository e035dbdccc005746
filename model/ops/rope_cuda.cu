// T tokens, H query heads, G key/value heads, K head dim. One block a token.
#include "model/ops/rope_cuda.h"

#include "model/ops/element_groups_cuda.cuh"
#include "model/ops/index_check_cuda.cuh"

namespace grpo::ops {

namespace {

constexpr int kRopeThreads = 128;

// Forward moves from qkv to the others, backward (their gradients) to it.
template <typename D>
struct QkvRope {
  D* qkv;                    // [T, (H + 2G) K]
  D* q;                      // [T, H, K]
  D* keys;                   // [num_slots, G, K]
  D* values;                 // [num_slots, G, K]
  const int32_t* positions;  // [T, 2]
  const float* table;        // [max_positions, K]
  int q_heads;               // H
  int kv_heads;              // G
  int head_dim;              // K
  int64_t num_slots;
  int64_t max_positions;
  bool aligned;
};

// Turns the pairs (i, i + K/2), i in [first, first + count), of one head by +angle or, for the
// transpose, by -angle.
template <bool kForward, int kWidth, typename D>
__device__ inline void turn_group(D* out, const D* in, const float* angles, int half, int count,
                                  bool aligned) {
  float cosines[kWidth];
  float sines[kWidth];
  float first[kWidth];
  float second[kWidth];
  load_group(cosines, angles, count, aligned);
  load_group(sines, angles + half, count, aligned);
  load_group(first, in, count, aligned);
  load_group(second, in + half, count, aligned);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float sine = kForward ? sines[i] : -sines[i];
    const float turned = __fsub_rn(__fmul_rn(first[i], cosines[i]), __fmul_rn(second[i], sine));
    second[i] = __fadd_rn(__fmul_rn(second[i], cosines[i]), __fmul_rn(first[i], sine));
    first[i] = turned;
  }
  store_group(out, first, count, aligned);
  store_group(out + half, second, count, aligned);
}

template <bool kForward, typename D>
__global__ void __launch_bounds__(kRopeThreads) qkv_rope_kernel(QkvRope<D> op) {
  constexpr int kWidth = kGroupWidth<D>;
  const int64_t t = blockIdx.x;
  const int64_t position = op.positions[2 * t];
  const int64_t slot = kForward ? op.positions[2 * t + 1] : t;
  check_index(position, t, op.max_positions);
  check_index(slot, t, op.num_slots);
  const int half = op.head_dim / 2;
  const int kv_size = op.kv_heads * op.head_dim;
  const int turned_heads = op.q_heads + op.kv_heads;
  D* packed = op.qkv + t * (turned_heads + op.kv_heads) * op.head_dim;
  D* q = op.q + t * op.q_heads * op.head_dim;
  D* keys = op.keys + slot * kv_size;
  D* values = op.values + slot * kv_size;
  const float* angles = op.table + position * op.head_dim;

  const int groups_per_half = (half + kWidth - 1) / kWidth;
  const int turn_groups = turned_heads * groups_per_half;
  for (int group = static_cast<int>(threadIdx.x); group < turn_groups; group += kRopeThreads) {
    const int head = group / groups_per_half;
    const int first = group % groups_per_half * kWidth;
    D* whole = packed + head * op.head_dim + first;
    D* part =
        (head < op.q_heads ? q + head * op.head_dim : keys + (head - op.q_heads) * op.head_dim) +
        first;
    turn_group<kForward, kWidth>(kForward ? part : whole, kForward ? whole : part, angles + first,
                                 half, min(kWidth, half - first), op.aligned);
  }
  D* packed_values = packed + turned_heads * op.head_dim;
  for (int first = static_cast<int>(threadIdx.x) * kWidth; first < kv_size;
       first += kRopeThreads * kWidth) {
    const int count = min(kWidth, kv_size - first);
    D* from = (kForward ? packed_values : values) + first;
    D* to = (kForward ? values : packed_values) + first;
    store_packet<kWidth>(to, load_packet<kWidth>(from, count, op.aligned), count, op.aligned);
  }
}

template <typename D>
QkvRope<D> rope_operands(const Tensor& qkv, const Tensor& q, const Tensor& keys,
                         const Tensor& values, const Tensor& positions, const Tensor& table) {
  constexpr int kWidth = kGroupWidth<D>;
  QkvRope<D> rope{device_data<D>(qkv),
                  device_data<D>(q),
                  device_data<D>(keys),
                  device_data<D>(values),
                  positions.data<int32_t>(),
                  table.data<float>(),
                  static_cast<int>(q.size(1)),
                  static_cast<int>(keys.size(1)),
                  static_cast<int>(q.size(2)),
                  keys.size(0),
                  table.size(0),
                  false};
  rope.aligned = rope.head_dim % (2 * kWidth) == 0 && is_aligned<kWidth>(rope.qkv) &&
                 is_aligned<kWidth>(rope.q) && is_aligned<kWidth>(rope.keys) &&
                 is_aligned<kWidth>(rope.values) && is_aligned<kWidth>(rope.table);
  return rope;
}

}  // namespace

void qkv_rope_forward_cuda(const Tensor& q, const Tensor& keys, const Tensor& values,
                           const Tensor& qkv, const Tensor& positions, const Tensor& table,
                           OpContext& ctx) {
  const char* op = "qkv_rope_forward";
  dispatch_device_type(op, q.dtype(), [&]<typename D>(D) {
    launch(op, qkv_rope_kernel<true, D>, q.size(0), kRopeThreads, ctx,
           rope_operands<D>(qkv, q, keys, values, positions, table));
  });
}

void qkv_rope_backward_cuda(const Tensor& dqkv, const Tensor& dq, const Tensor& dkeys,
                            const Tensor& dvalues, const Tensor& positions, const Tensor& table,
                            OpContext& ctx) {
  const char* op = "qkv_rope_backward";
  dispatch_device_type(op, dq.dtype(), [&]<typename D>(D) {
    launch(op, qkv_rope_kernel<false, D>, dq.size(0), kRopeThreads, ctx,
           rope_operands<D>(dqkv, dq, dkeys, dvalues, positions, table));
  });
}

}  // namespace grpo::ops
