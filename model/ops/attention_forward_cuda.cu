// bfloat16 attention on tensor cores. A block takes kWarps * 16 rows (head of the group within
// position) of one sequence and key/value head, each warp 16 of them, and walks tiles of 64 keys
// from the sequence's start. What a row gets depends on its own query and the keys up to its own
// position alone: a product's element is its row's and column's, reductions run over the four lanes
// that share a row, and a tile that a row sees nothing of leaves its state as it was (factor 1,
// weights 0 of values that are finite or zeros), so that it does not matter which rows come
// together.
#include "model/ops/attention_cuda.h"
#include "model/ops/attention_plain_cuda.h"
#include "model/ops/attention_tile_cuda.cuh"

namespace grpo::ops {

namespace {

struct ForwardOperands {
  AttentionView view;
  __nv_bfloat16* out;           // [T, H, K]
  float* lse;                   // [T, H] or null
  const __nv_bfloat16* q;       // [T, H, K]
  const __nv_bfloat16* keys;    // [slots, G, K]
  const __nv_bfloat16* values;  // [slots, G, K]
  float scale;
  float scale_log2;   // scale * log2(e)
  int num_row_tiles;  // of the longest sequence
  bool tiles_follow;  // see TileSlots
};

// A lane's two rows, g and g + 8 of its warp.
struct RunningSoftmax {
  float max[2];  // of the raw scores
  float sum[2];  // of this lane's columns
};

// Takes a tile's raw scores into the running softmax; they become weights.
template <int kDim>
__device__ inline void advance(RunningSoftmax& state, float (&outs)[kDim / 8][4],
                               float (&scores)[kTileKeys / 8][4], float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float max = state.max[half];
#pragma unroll
    for (int n = 0; n < kTileKeys / 8; ++n)
      max = fmaxf(max, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
    const float scaled_max = __fmul_rn(max, scale_log2);
    const float correction =
        exp2_fast(__fsub_rn(__fmul_rn(state.max[half], scale_log2), scaled_max));
    state.max[half] = max;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n][i] = exp2_fast(__fmaf_rn(scores[n][i], scale_log2, -scaled_max));
        sum = __fadd_rn(sum, scores[n][i]);
      }
    }
    state.sum[half] = __fmaf_rn(state.sum[half], correction, sum);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      outs[n][2 * half] = __fmul_rn(outs[n][2 * half], correction);
      outs[n][2 * half + 1] = __fmul_rn(outs[n][2 * half + 1], correction);
    }
  }
}

// Keys behind a row's position do not exist for it.
__device__ inline void mask_scores(float (&scores)[kTileKeys / 8][4], int first_key,
                                   const int (&positions)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + 8 * n + lane % kRowThreads * 2 + i % 2;
      if (key > positions[i / 2]) scores[n][i] = -INFINITY;
    }
  }
}

// Walks kStep keys at a time: a whole tile, or the first kStep places of one.
template <int kDim, int kWarps, int kStep>
__global__ void __launch_bounds__(kWarps * 32, kWarps == 1 ? 1 : 256 / kDim)
    attention_forward_kernel(ForwardOperands operands) {
  static_assert(kTileKeys % kStep == 0, "so that pages of whole tiles hold whole steps");
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kThreads = kWarps * 32;
  constexpr int kRows = kWarps * kWarpRows;
  const AttentionView& view = operands.view;
  // The last rows, which see most keys, come first.
  const int sequence_head = static_cast<int>(blockIdx.x) % (view.num_sequences * view.kv_heads);
  const int row_tile = operands.num_row_tiles - 1 -
                       static_cast<int>(blockIdx.x) / (view.num_sequences * view.kv_heads);
  const int head = sequence_head % view.kv_heads;
  const DeviceSequence sequence(view, sequence_head / view.kv_heads);
  const int num_rows = sequence.num_queries * view.group;
  const int first_row = row_tile * kRows;
  if (first_row >= num_rows) return;
  const int last_row = min(first_row + kRows, num_rows) - 1;
  const int num_keys = sequence.first_position + last_row / view.group + 1;
  const int num_tiles = (num_keys + kStep - 1) / kStep;

  const Tile<kDim> queries{reinterpret_cast<__nv_bfloat16*>(shared)};
  const auto tile_at = [&](int index) {
    return Tile<kDim>{queries.data + (kRows + index * kTileKeys) * kDim};
  };
  copy_rows<kThreads>(queries, kRows, operands.q, [&](int row) {
    return first_row + row > last_row
               ? nullptr
               : operands.q + query_index(view, sequence, head, first_row + row) * kDim;
  });
  const auto begin_tile = [&](int tile) {
    const int first_key = tile * kStep;
    const int end_key = kStep == kTileKeys ? num_keys : min(num_keys, first_key + kStep);
    const TileSlots slots(sequence, first_key, num_keys, operands.tiles_follow);
    const auto copy = [&](const Tile<kDim>& to, const __nv_bfloat16* all) {
      copy_rows<kThreads>(to, kTileKeys, all, [&](int row) -> const __nv_bfloat16* {
        const int64_t slot = slots.slot(row);
        if (first_key + row >= end_key) return nullptr;
        return all + (slot * view.kv_heads + head) * kDim;
      });
    };
    copy(tile_at(tile % 2 * 2), operands.keys);
    copy(tile_at(tile % 2 * 2 + 1), operands.values);
    commit_copies();
  };
  begin_tile(0);

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  const int row = first_row + warp_row + lane / kRowThreads;
  const int positions[2] = {sequence.first_position + row / view.group,
                            sequence.first_position + (row + 8) / view.group};
  const int warp_first_position = sequence.first_position + (first_row + warp_row) / view.group;
  const int warp_last_row = min(first_row + warp_row + kWarpRows - 1, last_row);
  const int warp_keys = first_row + warp_row > last_row
                            ? 0
                            : sequence.first_position + warp_last_row / view.group + 1;
  LeftRows<kDim> left;
  float outs[kDim / 8][4] = {};
  RunningSoftmax state{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (tile + 1 < num_tiles) {
      begin_tile(tile + 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    if (tile == 0) load_left_rows(left, queries, warp_row);
    const int first_key = tile * kStep;
    if (first_key < warp_keys) {
      float scores[kTileKeys / 8][4] = {};
      multiply_rows(scores, left, tile_at(tile % 2 * 2));
      if constexpr (kStep < kTileKeys) {
        const int last_key = first_key + kStep - 1;
        const int last_seen[2] = {min(positions[0], last_key), min(positions[1], last_key)};
        mask_scores(scores, first_key, last_seen);
      } else if (first_key + kTileKeys - 1 > warp_first_position) {
        mask_scores(scores, first_key, positions);
      }
      advance<kDim>(state, outs, scores, operands.scale_log2);
      LeftRows<kTileKeys> weights;
      round_left(weights, scores);
      multiply_columns(outs, weights, tile_at(tile % 2 * 2 + 1));
    }
    __syncthreads();
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = state.sum[half];
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
    const float inverse = __frcp_rn(sum);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      outs[n][2 * half] = __fmul_rn(outs[n][2 * half], inverse);
      outs[n][2 * half + 1] = __fmul_rn(outs[n][2 * half + 1], inverse);
    }
    if (operands.lse != nullptr && lane % kRowThreads == 0 && row + 8 * half <= last_row) {
      operands.lse[query_index(view, sequence, head, row + 8 * half)] =
          __fmaf_rn(state.max[half], operands.scale, logf(sum));
    }
  }
  store_rows(queries, warp_row, outs, [&](int tile_row) {
    return first_row + tile_row > last_row
               ? nullptr
               : operands.out + query_index(view, sequence, head, first_row + tile_row) * kDim;
  });
}

template <int kDim, int kWarps, int kStep>
void launch_forward(const char* op, ForwardOperands operands, int64_t max_query_rows,
                    OpContext& ctx) {
  constexpr int kRows = kWarps * kWarpRows;
  const int64_t row_tiles = ceil_div(max_query_rows * operands.view.group, kRows);
  operands.num_row_tiles = static_cast<int>(row_tiles);
  constexpr int64_t kSharedBytes = (kRows + 4 * kTileKeys) * kDim * sizeof(__nv_bfloat16);
  launch_with_shared(op, attention_forward_kernel<kDim, kWarps, kStep>,
                     row_tiles * operands.view.num_sequences * operands.view.kv_heads, kWarps * 32,
                     kSharedBytes, ctx, operands);
}

template <int kDim>
void launch_forward(const char* op, const ForwardOperands& operands, int64_t max_query_rows,
                    OpContext& ctx) {
  if (ctx.numerics.narrow_kv_tiles) {
    launch_forward<kDim, 1, kNarrowTileKeys>(op, operands, max_query_rows, ctx);
  } else if (max_query_rows * operands.view.group <= kWarpRows) {
    launch_forward<kDim, 1, kTileKeys>(op, operands, max_query_rows, ctx);
  } else {
    launch_forward<kDim, 4, kTileKeys>(op, operands, max_query_rows, ctx);
  }
}

}  // namespace

void attention_forward_cuda(const Tensor& out, const Tensor& lse, const Tensor& q, const KvView& kv,
                            float scale, OpContext& ctx) {
  const char* op = "attention_forward";
  if (q.num_elements() == 0) return;
  if (!has_tensor_core_kernel(q)) {
    attention_forward_plain_cuda(out, lse, q, kv, scale, ctx);
    return;
  }
  check_tile_operands(op, {&out, &q, &kv.keys, &kv.values}, scale);
  const ForwardOperands operands{
      .view = attention_view(q, kv),
      .out = device_data<__nv_bfloat16>(out),
      .lse = lse.is_absent() ? nullptr : lse.data<float>(),
      .q = device_data<__nv_bfloat16>(q),
      .keys = device_data<__nv_bfloat16>(kv.keys),
      .values = device_data<__nv_bfloat16>(kv.values),
      .scale = scale,
      .scale_log2 = scale * kLog2E,
      .num_row_tiles = 0,
      .tiles_follow = kv.page_size_tokens % kTileKeys == 0 || kv.page_first_slot.size(1) == 1};
  if (q.size(2) == 64) {
    launch_forward<64>(op, operands, kv.max_query_rows, ctx);
  } else {
    launch_forward<128>(op, operands, kv.max_query_rows, ctx);
  }
}

}  // namespace grpo::ops
