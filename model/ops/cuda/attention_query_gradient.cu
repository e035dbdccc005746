#include "model/ops/cuda/attention_backward.cuh"

namespace grpo::ops::cuda {

namespace {

// Of this lane's rows of a warp's 16 kM: g and g + 8 of each 16.
template <int kM>
struct LaneRows {
  int positions[kM][2];
  BackwardStatistics statistics[kM][2];
};

// From a warp's scores and dout v^T for kColumns keys from first_key: the latter become dS.
template <int kM, int kColumns>
__device__ inline void query_score_gradients(SumBlock<kM, kColumns>& ds,
                                             SumBlock<kM, kColumns>& scores,
                                             const LaneRows<kM>& rows, float scale_log2) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        score_gradient(scores[m][n][i], ds[m][n][i], rows.statistics[m][i / 2], scale_log2);
    }
  }
}

template <int kM, int kColumns>
__device__ inline void mask_query_gradients(SumBlock<kM, kColumns>& ds, const LaneRows<kM>& rows,
                                            int first_key) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + 8 * n + lane_index() % kRowThreads * 2 + i % 2;
        if (key > rows.positions[m][i / 2]) ds[m][n][i] = 0.0f;
      }
    }
  }
}

template <int kDim>
constexpr int kQueryRows = kBackwardWarps * 16 * WarpBlock<kDim>::kM;

template <int kDim>
__global__ void __launch_bounds__(kBackwardThreads, kBackwardBlocks)
    query_gradient_kernel(BackwardOperands operands, int num_row_tiles) {
  extern __shared__ __align__(256) unsigned char shared[];
  constexpr int kM = WarpBlock<kDim>::kM;
  constexpr int kColumns = WarpBlock<kDim>::kColumns;
  constexpr int kRows = kQueryRows<kDim>;
  constexpr bool kKeepsLeft = kDim == 64;  // q and dout in registers
  constexpr int kTileBytes = kTileKeys * Tile<kDim>::kRowBytes;
  constexpr int kRowsBytes = kRows * Tile<kDim>::kRowBytes;
  const AttentionView& view = operands.view;
  // The last rows, which see most keys, come first.
  const int sequence_head = static_cast<int>(blockIdx.x) % (view.num_sequences * view.kv_heads);
  const int first_row =
      (num_row_tiles - 1 - static_cast<int>(blockIdx.x) / (view.num_sequences * view.kv_heads)) *
      kRows;
  const int head = sequence_head % view.kv_heads;
  const DeviceSequence sequence(view, sequence_head / view.kv_heads);
  const int num_rows = sequence.num_queries * view.group;
  if (first_row >= num_rows) return;
  const int last_row = min(first_row + kRows, num_rows) - 1;
  const int num_keys = view.positions_before(last_row) + 1;
  const int num_tiles = (num_keys + kTileKeys - 1) / kTileKeys;
  const Tile<kDim> queries{shared_address(shared)};
  const Tile<kDim> douts{queries.address + kRowsBytes};
  const auto key_tile = [&](int index) {
    return Tile<kDim>{douts.address + kRowsBytes + static_cast<SharedAddress>(index * kTileBytes)};
  };
  copy_row_pairs<kBackwardThreads, kRows, kDim>(
      queries, operands.q, douts, operands.dout, last_row + 1 - first_row,
      [&](int row) { return query_index(view, sequence, head, first_row + row) * kDim; });
  const auto begin_tile = [&](int tile) {
    const int first_key = tile * kTileKeys;
    copy_row_pairs<kBackwardThreads, kTileKeys, kDim>(
        key_tile(tile % 2 * 2), operands.keys, key_tile(tile % 2 * 2 + 1), operands.values,
        num_keys - first_key,
        [&](int row) { return key_index(view, sequence, head, first_key + row) * kDim; });
    commit_copies();
  };
  begin_tile(0);

  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * kM;
  LaneRows<kM> rows;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row =
          min(first_row + warp_row + 16 * m + lane_index() / kRowThreads + 8 * half, last_row);
      rows.positions[m][half] = view.positions_before(row);
      rows.statistics[m][half] = operands.statistics[query_index(view, sequence, head, row)];
    }
  }
  const int warp_first_position = view.positions_before(first_row + warp_row);
  const int warp_last_position =
      view.positions_before(min(first_row + warp_row + 16 * kM - 1, last_row));
  LeftBlock<kM, kDim> left_q;
  LeftBlock<kM, kDim> left_dout;
  SumBlock<kM, kDim> dq = {};
  for (int tile = 0; tile < num_tiles; ++tile) {
    wait_for_copies();
    // After this every warp is done with the tile before, whose place the next one takes.
    __syncthreads();
    if (kKeepsLeft && tile == 0) {
      load_left<kM, kDim>(left_q, queries, warp_row);
      load_left<kM, kDim>(left_dout, douts, warp_row);
    }
    if (tile + 1 < num_tiles) begin_tile(tile + 1);
    const Tile<kDim> keys = key_tile(tile % 2 * 2);
    const Tile<kDim> values = key_tile(tile % 2 * 2 + 1);
#pragma unroll 1
    for (int part = 0; part < kTileKeys; part += kColumns) {
      const int first_key = tile * kTileKeys + part;
      if (first_key > warp_last_position) break;
      SumBlock<kM, kColumns> scores = {};
      SumBlock<kM, kColumns> ds = {};
      if constexpr (kKeepsLeft) {
        multiply_rows<kM, kColumns, kDim>(scores, left_q, keys, part);
        multiply_rows<kM, kColumns, kDim>(ds, left_dout, values, part);
      } else {
        multiply_rows<kM, kColumns, kDim>(scores, queries, warp_row, keys, part);
        multiply_rows<kM, kColumns, kDim>(ds, douts, warp_row, values, part);
      }
      query_score_gradients<kM, kColumns>(ds, scores, rows, operands.scale_log2);
      if (first_key + kColumns - 1 > warp_first_position) {
        mask_query_gradients<kM, kColumns>(ds, rows, first_key);
      }
      LeftBlock<kM, kColumns> factor;
      round_left<kM, kColumns>(factor, ds);
      multiply_columns<kM, kColumns, kDim>(dq, factor, keys, part);
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    scale_sums<kDim>(dq[m], operands.scale);
    store_rows(queries, warp_row + 16 * m, dq[m], [&](int row) {
      return first_row + row > last_row
                 ? nullptr
                 : operands.dq + query_index(view, sequence, head, first_row + row) * kDim;
    });
  }
}

template <int kDim>
void launch_for_dim(const char* op, const BackwardOperands& operands, OpContext& ctx) {
  const AttentionView& view = operands.view;
  const int64_t row_tiles = ceil_div(operands.longest * view.group, kQueryRows<kDim>);
  constexpr int64_t kSharedBytes = (2 * kQueryRows<kDim> + 4 * kTileKeys) * Tile<kDim>::kRowBytes;
  launch_with_shared(op, query_gradient_kernel<kDim>,
                     row_tiles * view.num_sequences * view.kv_heads, kBackwardThreads, kSharedBytes,
                     ctx, operands, static_cast<int>(row_tiles));
}

}  // namespace

void launch_query_gradient(const char* op, const BackwardOperands& operands, OpContext& ctx) {
  if (operands.view.head_dim == 64) {
    launch_for_dim<64>(op, operands, ctx);
  } else {
    launch_for_dim<128>(op, operands, ctx);
  }
}

}  // namespace grpo::ops::cuda
