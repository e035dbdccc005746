// T tokens, H query heads, G key/value heads, K head dim.
#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/cuda/index_check.cuh"

namespace grpo::ops::cuda {

namespace {

constexpr int kRopeThreads = 256;

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
  int groups_per_token;
  bool aligned;
};

// Turns the pairs (i, i + K/2), i in [0, count) from the group's first on, of one head by +angle
// or, for the transpose, by -angle. What is turned is loaded before the angles are known.
template <bool kForward, int kWidth>
struct TurnedGroup {
  float first[kWidth];
  float second[kWidth];

  template <typename D>
  __device__ void load(const D* in, int half, int count, bool aligned) {
    load_group(first, in, count, aligned);
    load_group(second, in + half, count, aligned);
  }

  template <typename D>
  __device__ void turn(D* out, const float* angles, int half, int count, bool aligned) {
    float cosines[kWidth];
    float sines[kWidth];
    load_group(cosines, angles, count, aligned);
    load_group(sines, angles + half, count, aligned);
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
};

// A thread a group of a token: those that are turned, then those of the values.
template <bool kForward, typename D>
__global__ void __launch_bounds__(kRopeThreads) qkv_rope_kernel(QkvRope<D> op, int num_groups) {
  constexpr int kWidth = kGroupWidth<D>;
  const int at = static_cast<int>(blockIdx.x) * kRopeThreads + static_cast<int>(threadIdx.x);
  const int t = at / op.groups_per_token;
  if (at >= num_groups) return;
  const int group = at - t * op.groups_per_token;
  const int half = op.head_dim / 2;
  const int kv_size = op.kv_heads * op.head_dim;
  const int turned_heads = op.q_heads + op.kv_heads;
  const int groups_per_half = (half + kWidth - 1) / kWidth;
  D* packed = op.qkv + static_cast<int64_t>(t) * (turned_heads + op.kv_heads) * op.head_dim;
  // Row of keys and values.
  const auto slot = [&] {
    const int64_t index = kForward ? op.positions[2 * t + 1] : t;
    check_index(index, t, op.num_slots);
    return index;
  };
  if (group < turned_heads * groups_per_half) {
    const int head = group / groups_per_half;
    const int first = group % groups_per_half * kWidth;
    const int count = min(kWidth, half - first);
    D* whole = packed + head * op.head_dim + first;
    const auto part = [&] {
      return head < op.q_heads
                 ? op.q + (static_cast<int64_t>(t) * op.q_heads + head) * op.head_dim + first
                 : op.keys + slot() * kv_size + (head - op.q_heads) * op.head_dim + first;
    };
    TurnedGroup<kForward, kWidth> pairs;
    pairs.load(kForward ? whole : part(), half, count, op.aligned);
    const int64_t position = op.positions[2 * t];
    check_index(position, t, op.max_positions);
    pairs.turn(kForward ? part() : whole, op.table + position * op.head_dim + first, half, count,
               op.aligned);
    return;
  }
  const int first = (group - turned_heads * groups_per_half) * kWidth;
  const int count = min(kWidth, kv_size - first);
  D* whole = packed + turned_heads * op.head_dim + first;
  D* part = op.values + slot() * kv_size + first;
  store_packet<kWidth>(kForward ? part : whole,
                       load_packet<kWidth>(kForward ? whole : part, count, op.aligned), count,
                       op.aligned);
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
                  0,
                  false};
  rope.groups_per_token =
      static_cast<int>((rope.q_heads + rope.kv_heads) * ceil_div(rope.head_dim / 2, kWidth) +
                       ceil_div(rope.kv_heads * rope.head_dim, kWidth));
  rope.aligned = rope.head_dim % (2 * kWidth) == 0 && is_aligned<kWidth>(rope.qkv) &&
                 is_aligned<kWidth>(rope.q) && is_aligned<kWidth>(rope.keys) &&
                 is_aligned<kWidth>(rope.values) && is_aligned<kWidth>(rope.table);
  return rope;
}

template <bool kForward, typename D>
void launch_rope(const char* op, const QkvRope<D>& rope, int64_t num_tokens, OpContext& ctx) {
  const int64_t num_groups = num_tokens * rope.groups_per_token;
  CHECK(num_groups < std::numeric_limits<int>::max() - kRopeThreads, "{}: {} tokens", op,
        num_tokens);
  launch(op, qkv_rope_kernel<kForward, D>, ceil_div(num_groups, kRopeThreads), kRopeThreads, ctx,
         rope, static_cast<int>(num_groups));
}

}  // namespace

void qkv_rope_forward(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                      const Tensor& positions, const Tensor& table, OpContext& ctx) {
  const char* op = "qkv_rope_forward";
  dispatch_device_type(op, q.dtype(), [&]<typename D>(D) {
    launch_rope<true>(op, rope_operands<D>(qkv, q, keys, values, positions, table), q.size(0), ctx);
  });
}

void qkv_rope_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dkeys,
                       const Tensor& dvalues, const Tensor& positions, const Tensor& table,
                       OpContext& ctx) {
  const char* op = "qkv_rope_backward";
  dispatch_device_type(op, dq.dtype(), [&]<typename D>(D) {
    launch_rope<false>(op, rope_operands<D>(dqkv, dq, dkeys, dvalues, positions, table), dq.size(0),
                       ctx);
  });
}

}  // namespace grpo::ops::cuda
