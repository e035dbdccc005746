// bfloat16 attention on tensor cores. A block takes rows (head of the group within position) of one
// sequence and key/value head, each warp 16 kM of them, and walks tiles of 64 keys from the
// sequence's start. What a row gets depends on its own query and the keys up to its own position
// alone: a product's element is its row's and column's, reductions run over the four lanes that
// share a row, and a tile that a row sees nothing of leaves its state as it was (factor 1, weights
// 0 of values that are finite or zeros), so that it does not matter which rows come together.
#include "model/ops/cuda/attention_plain.h"
#include "model/ops/cuda/attention_tile.cuh"
#include "model/ops/cuda/entry_points.h"

namespace grpo::ops::cuda {

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

// A lane's two rows, g and g + 8, of 16 of its warp.
struct RunningSoftmax {
  float max[2];  // of the raw scores
  float sum[2];  // of this lane's columns
};

// Takes a tile's raw scores of 16 rows into the running softmax; they become weights.
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
#pragma unroll
  for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + 8 * n + lane_index() % kRowThreads * 2 + i % 2;
      if (key > positions[i / 2]) scores[n][i] = -INFINITY;
    }
  }
}

// The tiles of keys and values of one block on their way through shared memory, two at a time: each
// of kStep keys, the rest of its places zeros.
template <int kThreads, int kDim, int kStep>
struct KeyTiles {
  static_assert(kTileKeys % kStep == 0, "so that pages of whole tiles hold whole steps");
  Tile<kDim> first;
  const ForwardOperands& operands;
  const DeviceSequence& sequence;
  int head;
  int num_keys;

  __device__ Tile<kDim> keys(int tile) const { return at(tile % 2 * 2); }
  __device__ Tile<kDim> values(int tile) const { return at(tile % 2 * 2 + 1); }

  // Begins to copy a tile.
  __device__ void begin(int tile) const {
    const AttentionView& view = operands.view;
    const int first_key = tile * kStep;
    const int count = kStep == kTileKeys ? num_keys - first_key : min(num_keys - first_key, kStep);
    const int64_t row_size = int64_t{view.kv_heads} * kDim;
    const auto copy = [&](const auto& slot) {
      copy_row_pairs<kThreads, kTileKeys, kDim>(
          keys(tile), operands.keys, values(tile), operands.values, count,
          [&](int row) { return slot(row) * row_size + head * kDim; });
    };
    if (operands.tiles_follow) {
      const int64_t start =
          view.max_pages == 1 ? int64_t{sequence.pages[0]} + first_key : sequence.slot(first_key);
      copy([start](int row) { return start + row; });
    } else {
      const TileSlots slots(sequence, first_key, num_keys);
      copy([&slots](int row) { return slots.slot(row); });
    }
    commit_copies();
  }

 private:
  __device__ Tile<kDim> at(int index) const {
    return {first.address + static_cast<SharedAddress>(index * kTileKeys * Tile<kDim>::kRowBytes)};
  }
};

// Walks kStep keys at a time: a whole tile, or the first kStep places of one.
template <int kDim, int kWarps, int kM, int kStep>
__global__ void __launch_bounds__(kWarps * 32, kWarps == 1 ? 1 : 256 / kDim / kM)
    attention_forward_kernel(ForwardOperands operands) {
  extern __shared__ __align__(256) unsigned char shared[];
  constexpr int kThreads = kWarps * 32;
  constexpr int kWarpRows = 16 * kM;
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
  const auto position_of = [&](int row) {
    return sequence.first_position + view.positions_before(row);
  };
  const int num_keys = position_of(last_row) + 1;
  const int num_tiles = (num_keys + kStep - 1) / kStep;

  const Tile<kDim> queries{shared_address(shared)};
  const KeyTiles<kThreads, kDim, kStep> tiles{
      {queries.address + static_cast<SharedAddress>(kRows * Tile<kDim>::kRowBytes)},
      operands,
      sequence,
      head,
      num_keys};
  copy_rows<kThreads>(queries, kRows, operands.q, [&](int row) {
    return first_row + row > last_row
               ? nullptr
               : operands.q + query_index(view, sequence, head, first_row + row) * kDim;
  });
  tiles.begin(0);

  const int warp_row = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  const int row = first_row + warp_row + lane_index() / kRowThreads;
  int positions[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    positions[m][0] = position_of(row + 16 * m);
    positions[m][1] = position_of(row + 16 * m + 8);
  }
  const int warp_first_position = position_of(first_row + warp_row);
  const int warp_keys = first_row + warp_row > last_row
                            ? 0
                            : position_of(min(first_row + warp_row + kWarpRows - 1, last_row)) + 1;
  LeftBlock<kM, kDim> left;
  SumBlock<kM, kDim> outs = {};
  RunningSoftmax state[kM];
#pragma unroll
  for (int m = 0; m < kM; ++m) state[m] = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
  for (int tile = 0; tile < num_tiles; ++tile) {
    wait_for_copies();
    // After this every warp is done with the tile before, whose place the next one takes.
    __syncthreads();
    if (tile == 0) load_left<kM, kDim>(left, queries, warp_row);
    if (tile + 1 < num_tiles) tiles.begin(tile + 1);
    const int first_key = tile * kStep;
    if (first_key >= warp_keys) continue;
    SumBlock<kM, kTileKeys> scores = {};
    multiply_rows<kM, kTileKeys, kDim>(scores, left, tiles.keys(tile), 0);
    const int last_key = first_key + kStep - 1;
    if (kStep < kTileKeys || last_key > warp_first_position) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const int last_seen[2] = {min(positions[m][0], last_key), min(positions[m][1], last_key)};
        mask_scores(scores[m], first_key, last_seen);
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) advance<kDim>(state[m], outs[m], scores[m], operands.scale_log2);
    LeftBlock<kM, kTileKeys> weights;
    round_left<kM, kTileKeys>(weights, scores);
    multiply_columns<kM, kTileKeys, kDim>(outs, weights, tiles.values(tile), 0);
  }

#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own_row = row + 16 * m + 8 * half;
      float sum = state[m].sum[half];
      sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
      sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
      const float inverse = __frcp_rn(sum);
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        outs[m][n][2 * half] = __fmul_rn(outs[m][n][2 * half], inverse);
        outs[m][n][2 * half + 1] = __fmul_rn(outs[m][n][2 * half + 1], inverse);
      }
      if (operands.lse != nullptr && lane_index() % kRowThreads == 0 && own_row <= last_row) {
        operands.lse[query_index(view, sequence, head, own_row)] =
            __fmaf_rn(state[m].max[half], operands.scale, logf(sum));
      }
    }
    store_rows(queries, warp_row + 16 * m, outs[m], [&](int tile_row) {
      return first_row + tile_row > last_row
                 ? nullptr
                 : operands.out + query_index(view, sequence, head, first_row + tile_row) * kDim;
    });
  }
}

template <int kDim, int kWarps, int kM, int kStep = kTileKeys>
void launch_forward(const char* op, ForwardOperands operands, int64_t max_query_rows,
                    OpContext& ctx) {
  constexpr int kRows = kWarps * 16 * kM;
  const int64_t row_tiles = ceil_div(max_query_rows * operands.view.group, kRows);
  operands.num_row_tiles = static_cast<int>(row_tiles);
  constexpr int64_t kSharedBytes = (kRows + 4 * kTileKeys) * kDim * sizeof(__nv_bfloat16);
  launch_with_shared(op, attention_forward_kernel<kDim, kWarps, kM, kStep>,
                     row_tiles * operands.view.num_sequences * operands.view.kv_heads, kWarps * 32,
                     kSharedBytes, ctx, operands);
}

// The block's shape follows from the number of rows; no row's result does.
template <int kDim>
void launch_forward(const char* op, const ForwardOperands& operands, int64_t max_query_rows,
                    OpContext& ctx) {
  constexpr int kMost = kDim == 64 ? 2 : 1;  // of 16 rows that a warp's registers hold
  const int64_t rows = max_query_rows * operands.view.group;
  if (ctx.numerics.narrow_kv_tiles) {
    launch_forward<kDim, 1, 1, kNarrowTileKeys>(op, operands, max_query_rows, ctx);
  } else if (rows <= 16) {
    launch_forward<kDim, 1, 1>(op, operands, max_query_rows, ctx);
  } else if (rows <= 64) {
    launch_forward<kDim, 4, 1>(op, operands, max_query_rows, ctx);
  } else {
    launch_forward<kDim, 4, kMost>(op, operands, max_query_rows, ctx);
  }
}

}  // namespace

void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q, const KvView& kv,
                       float scale, OpContext& ctx) {
  const char* op = "attention_forward";
  if (q.num_elements() == 0) return;
  if (!has_tensor_core_kernel(q)) {
    attention_forward_plain(out, lse, q, kv, scale, ctx);
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

}  // namespace grpo::ops::cuda
