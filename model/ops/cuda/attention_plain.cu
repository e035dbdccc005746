// A warp works on one row of queries (or one key, for its gradients). In a tile of 32 keys (or
// rows) each lane has one; in a vector of K elements lane l has l, l + 32, ...
#include "model/ops/cuda/attention_plain.h"

#include "model/ops/cuda/attention_view.cuh"
#include "model/ops/cuda/float_math.cuh"

namespace grpo::ops::cuda {

namespace {

constexpr int kLanes = 32;
static_assert(kAttentionTileKeys == kLanes);

template <typename D>
struct PlainOperands {
  AttentionView view;
  const D* q;        // [T, H, K]
  const D* keys;     // [slots, G, K]
  const D* values;   // [slots, G, K]
  const D* out;      // [T, H, K]
  const float* lse;  // [T, H]
  const D* dout;     // [T, H, K]
  float scale;
  int tile_keys;  // of the forward; at most kLanes

  __device__ int64_t slot_offset(const DeviceSequence& sequence, int key, int head) const {
    return (sequence.slot(key) * view.kv_heads + head) * view.head_dim;
  }
};

// One ascending chain of fused multiply-adds.
template <typename D>
__device__ inline float chain_dot(const D* a, const D* b, int size) {
  float sum = 0.0f;
  for (int k = 0; k < size; ++k) sum = __fmaf_rn(to_float(a[k]), to_float(b[k]), sum);
  return sum;
}

// tree_sum of the lanes, in every lane.
__device__ inline float warp_tree_sum(float value) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2)
    value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

__device__ inline float larger(float a, float b) { return a > b ? a : b; }

template <typename D>
__global__ void __launch_bounds__(kLanes)
    plain_forward_kernel(D* out, float* lse, PlainOperands<D> operands) {
  extern __shared__ __align__(16) unsigned char shared[];
  const AttentionView& view = operands.view;
  auto* sums = reinterpret_cast<float*>(shared);  // [K]
  const int lane = static_cast<int>(threadIdx.x);
  const int heads = view.kv_heads * view.group;
  const int t = static_cast<int>(blockIdx.x) / heads;
  const int head = static_cast<int>(blockIdx.x) % heads;
  const DeviceSequence sequence(view, sequence_of_query(view, t));
  const D* q = operands.q + static_cast<int64_t>(blockIdx.x) * view.head_dim;
  const int num_keys = sequence.first_position + t - sequence.first_query + 1;
  for (int k = lane; k < view.head_dim; k += kLanes) sums[k] = 0.0f;
  float max = -INFINITY;
  float sum = 0.0f;
  for (int first = 0; first < num_keys; first += operands.tile_keys) {
    const int visible = min(num_keys - first, operands.tile_keys);
    float scaled = -INFINITY;
    if (lane < visible) {
      const D* key =
          operands.keys + operands.slot_offset(sequence, first + lane, head / view.group);
      scaled = __fmul_rn(chain_dot(q, key, view.head_dim), operands.scale);
    }
    float tile_max = scaled;
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      tile_max = larger(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, distance));
    const float new_max = larger(tile_max, max);
    const float weight = exp_cuda(__fsub_rn(scaled, new_max));
    const float correction = exp_cuda(__fsub_rn(max, new_max));
    sum = __fmaf_rn(sum, correction, warp_tree_sum(weight));
    max = new_max;
    for (int k = lane; k < view.head_dim; k += kLanes) sums[k] = __fmul_rn(sums[k], correction);
    for (int j = 0; j < visible; ++j) {
      const float factor = __shfl_sync(0xffffffffu, weight, j);
      const D* value =
          operands.values + operands.slot_offset(sequence, first + j, head / view.group);
      for (int k = lane; k < view.head_dim; k += kLanes)
        sums[k] = __fmaf_rn(factor, to_float(value[k]), sums[k]);
    }
  }
  D* row = out + static_cast<int64_t>(blockIdx.x) * view.head_dim;
  for (int k = lane; k < view.head_dim; k += kLanes)
    row[k] = from_float<D>(__fdiv_rn(sums[k], sum));
  if (lse != nullptr && lane == 0) {
    lse[blockIdx.x] = static_cast<float>(static_cast<double>(max) + log(static_cast<double>(sum)));
  }
}

// delta [T, H] = sum over k of dout out: 16 chains by k modulo 16, joined by a tree.
template <typename D>
__global__ void __launch_bounds__(kLanes)
    plain_delta_kernel(float* delta, PlainOperands<D> operands) {
  constexpr int kChains = 16;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * operands.view.head_dim;
  float sum = 0.0f;
  for (int k = lane; lane < kChains && k < operands.view.head_dim; k += kChains) {
    sum = __fmaf_rn(to_float(operands.dout[first + k]), to_float(operands.out[first + k]), sum);
  }
  for (int distance = kChains / 2; distance > 0; distance /= 2)
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
  if (lane == 0) delta[blockIdx.x] = sum;
}

struct ScoreGradient {
  float p;   // softmax weight
  float ds;  // gradient of the unscaled score
};

template <typename D>
__device__ inline ScoreGradient score_gradient(const PlainOperands<D>& operands, const float* delta,
                                               int64_t query, int64_t key) {
  const int size = operands.view.head_dim;
  const D* q = operands.q + query * size;
  const float score = chain_dot(q, operands.keys + key, size);
  const float dp = chain_dot(operands.dout + query * size, operands.values + key, size);
  const float p = exp_cuda(__fsub_rn(__fmul_rn(score, operands.scale), operands.lse[query]));
  return {p, __fmul_rn(__fmul_rn(p, __fsub_rn(dp, delta[query])), operands.scale)};
}

template <typename D>
__global__ void __launch_bounds__(kLanes)
    plain_query_gradient_kernel(D* dq, const float* delta, PlainOperands<D> operands) {
  extern __shared__ __align__(16) unsigned char shared[];
  const AttentionView& view = operands.view;
  auto* sums = reinterpret_cast<float*>(shared);  // [K]
  const int lane = static_cast<int>(threadIdx.x);
  const int heads = view.kv_heads * view.group;
  const int t = static_cast<int>(blockIdx.x) / heads;
  const int head = static_cast<int>(blockIdx.x) % heads / view.group;
  const DeviceSequence sequence(view, sequence_of_query(view, t));
  const int num_keys = sequence.first_position + t - sequence.first_query + 1;
  for (int k = lane; k < view.head_dim; k += kLanes) sums[k] = 0.0f;
  for (int first = 0; first < num_keys; first += kLanes) {
    const int visible = num_keys - first < kLanes ? num_keys - first : kLanes;
    float ds = 0.0f;
    if (lane < visible) {
      const int64_t key = operands.slot_offset(sequence, first + lane, head);
      ds = score_gradient(operands, delta, blockIdx.x, key).ds;
    }
    for (int j = 0; j < visible; ++j) {
      const float factor = __shfl_sync(0xffffffffu, ds, j);
      const D* key = operands.keys + operands.slot_offset(sequence, first + j, head);
      for (int k = lane; k < view.head_dim; k += kLanes)
        sums[k] = __fmaf_rn(factor, to_float(key[k]), sums[k]);
    }
  }
  D* row = dq + static_cast<int64_t>(blockIdx.x) * view.head_dim;
  for (int k = lane; k < view.head_dim; k += kLanes) row[k] = from_float<D>(sums[k]);
}

template <typename D>
__global__ void __launch_bounds__(kLanes)
    plain_key_gradients_kernel(D* dkeys, D* dvalues, const float* delta,
                               PlainOperands<D> operands) {
  extern __shared__ __align__(16) unsigned char shared[];
  const AttentionView& view = operands.view;
  auto* key_sums = reinterpret_cast<float*>(shared);  // [K]
  float* value_sums = key_sums + view.head_dim;       // [K]
  const int lane = static_cast<int>(threadIdx.x);
  const int t = static_cast<int>(blockIdx.x) / view.kv_heads;
  const int head = static_cast<int>(blockIdx.x) % view.kv_heads;
  const DeviceSequence sequence(view, sequence_of_query(view, t));
  for (int k = lane; k < view.head_dim; k += kLanes) {
    key_sums[k] = 0.0f;
    value_sums[k] = 0.0f;
  }
  const int64_t key = static_cast<int64_t>(blockIdx.x) * view.head_dim;  // packed: slot t
  const int num_rows = sequence.num_queries * view.group;
  const int first_row = (t - sequence.first_query) * view.group;
  for (int first = first_row; first < num_rows; first += kLanes) {
    const int count = num_rows - first < kLanes ? num_rows - first : kLanes;
    ScoreGradient gradient{0.0f, 0.0f};
    if (lane < count) {
      const int64_t query = query_index(view, sequence, head, first + lane);
      gradient = score_gradient(operands, delta, query, key);
    }
    for (int j = 0; j < count; ++j) {
      const float p = __shfl_sync(0xffffffffu, gradient.p, j);
      const float ds = __shfl_sync(0xffffffffu, gradient.ds, j);
      const int64_t row = query_index(view, sequence, head, first + j) * view.head_dim;
      for (int k = lane; k < view.head_dim; k += kLanes) {
        key_sums[k] = __fmaf_rn(ds, to_float(operands.q[row + k]), key_sums[k]);
        value_sums[k] = __fmaf_rn(p, to_float(operands.dout[row + k]), value_sums[k]);
      }
    }
  }
  for (int k = lane; k < view.head_dim; k += kLanes) {
    dkeys[key + k] = from_float<D>(key_sums[k]);
    dvalues[key + k] = from_float<D>(value_sums[k]);
  }
}

template <typename D>
PlainOperands<D> plain_operands(const Tensor& q, const KvView& kv, float scale,
                                const OpContext& ctx) {
  return {.view = attention_view(q, kv),
          .q = device_data<D>(q),
          .keys = device_data<D>(kv.keys),
          .values = device_data<D>(kv.values),
          .out = nullptr,
          .lse = nullptr,
          .dout = nullptr,
          .scale = scale,
          .tile_keys = ctx.numerics.narrow_kv_tiles ? kNarrowTileKeys : kAttentionTileKeys};
}

}  // namespace

void attention_forward_plain(const Tensor& out, const Tensor& lse, const Tensor& q,
                             const KvView& kv, float scale, OpContext& ctx) {
  const char* op = "attention_forward";
  const int64_t vector_bytes = q.size(2) * static_cast<int64_t>(sizeof(float));
  dispatch_device_type(op, q.dtype(), [&]<typename D>(D) {
    launch_with_shared(op, plain_forward_kernel<D>, q.size(0) * q.size(1), kLanes, vector_bytes,
                       ctx, device_data<D>(out), lse.is_absent() ? nullptr : lse.data<float>(),
                       plain_operands<D>(q, kv, scale, ctx));
  });
}

void attention_backward_plain(const AttentionGradients& gradients, const Tensor& dout,
                              const AttentionSaved& saved, const KvView& kv, float scale,
                              OpContext& ctx) {
  const char* op = "attention_backward";
  const Tensor& q = saved.q;
  const int64_t num_rows = q.size(0) * q.size(1);
  const int64_t vector_bytes = q.size(2) * static_cast<int64_t>(sizeof(float));
  const Workspace::Scope scope(ctx.workspace);
  float* delta = ctx.workspace.take(DType::kFloat32, {num_rows}).data<float>();
  dispatch_device_type(op, q.dtype(), [&]<typename D>(D) {
    PlainOperands<D> operands = plain_operands<D>(q, kv, scale, ctx);
    operands.out = device_data<D>(saved.out);
    operands.lse = saved.lse.data<float>();
    operands.dout = device_data<D>(dout);
    launch(op, plain_delta_kernel<D>, num_rows, kLanes, ctx, delta, operands);
    launch_with_shared(op, plain_query_gradient_kernel<D>, num_rows, kLanes, vector_bytes, ctx,
                       device_data<D>(gradients.dq), delta, operands);
    launch_with_shared(op, plain_key_gradients_kernel<D>, q.size(0) * kv.keys.size(1), kLanes,
                       2 * vector_bytes, ctx, device_data<D>(gradients.dkeys),
                       device_data<D>(gradients.dvalues), delta, operands);
  });
}

}  // namespace grpo::ops::cuda
