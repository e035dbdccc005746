#include "model/ops/cuda/attention_backward.cuh"

namespace grpo::ops::cuda {

namespace {

constexpr int kTileRows = 64;

// A tile of rows on its way through shared memory, as the right factor of a tile of keys.
template <int kDim>
struct RowTile {
  Tile<kDim> q;
  Tile<kDim> dout;
  SharedAddress statistics;  // [kTileRows] BackwardStatistics

  static constexpr int kBytes =
      kTileRows * (2 * Tile<kDim>::kRowBytes + static_cast<int>(sizeof(BackwardStatistics)));

  __device__ explicit RowTile(SharedAddress address)
      : q{address},
        dout{address + kTileRows * Tile<kDim>::kRowBytes},
        statistics(address + 2 * kTileRows * Tile<kDim>::kRowBytes) {}

  // Begins to copy rows [first_row, first_row + kTileRows).
  __device__ void begin(const BackwardOperands& operands, const DeviceSequence& sequence, int head,
                        int first_row) const {
    const AttentionView& view = operands.view;
    const int count = sequence.num_queries * view.group - first_row;
    copy_row_pairs<kBackwardThreads, kTileRows, kDim>(
        q, operands.q, dout, operands.dout, count,
        [&](int row) { return query_index(view, sequence, head, first_row + row) * kDim; });
    const int row = static_cast<int>(threadIdx.x);
    if (row < kTileRows) {
      const bool valid = row < count;
      const int64_t index = valid ? query_index(view, sequence, head, first_row + row) : 0;
      copy_8_bytes(statistics + static_cast<SharedAddress>(row * sizeof(BackwardStatistics)),
                   operands.statistics + index, valid);
    }
    commit_copies();
  }

  // Of this lane's two neighbouring rows of 8 from row `first` on.
  __device__ void load_statistics(BackwardStatistics (&pair)[2], int first) const {
    const int row = first + lane_index() % kRowThreads * 2;
    const uint4 words = load_shared_16_bytes(
        statistics + static_cast<SharedAddress>(row * sizeof(BackwardStatistics)));
    pair[0] = {__uint_as_float(words.x), __uint_as_float(words.y)};
    pair[1] = {__uint_as_float(words.z), __uint_as_float(words.w)};
  }
};

// The gradients of one tile of keys: what a warp does with a tile of rows. Warps share the keys out
// first, then the rows of each tile.
template <int kDim>
struct KeyGradients {
  static constexpr int kM = WarpBlock<kDim>::kM;
  static constexpr int kColumns = WarpBlock<kDim>::kColumns;
  static constexpr int kKeyWarps = kTileKeys / (16 * kM);
  static constexpr int kRowWarps = kBackwardWarps / kKeyWarps;
  static_assert(kRowWarps * kColumns == kTileRows);

  Tile<kDim> keys;
  Tile<kDim> values;
  int first_key;  // of the block's tile
  SumBlock<kM, kDim> dkeys;
  SumBlock<kM, kDim> dvalues;

  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ int warp_key() { return warp() % kKeyWarps * 16 * kM; }  // in the tile
  static __device__ int warp_row() { return warp() / kKeyWarps * kColumns; }

  // position_of(row) is the position of a row of the tile.
  template <typename Position>
  __device__ void add(const RowTile<kDim>& rows, const Position& position_of, float scale_log2) {
    const int key = first_key + warp_key();
    if (key > position_of(warp_row() + kColumns - 1)) return;  // no row sees any of the keys
    SumBlock<kM, kColumns> scores = {};
    SumBlock<kM, kColumns> ds = {};
    multiply_rows<kM, kColumns, kDim>(scores, keys, warp_key(), rows.q, warp_row());
    multiply_rows<kM, kColumns, kDim>(ds, values, warp_key(), rows.dout, warp_row());
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      BackwardStatistics statistics[2];
      rows.load_statistics(statistics, warp_row() + 8 * n);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          score_gradient(scores[m][n][i], ds[m][n][i], statistics[i % 2], scale_log2);
      }
    }
    if (key + 16 * kM - 1 > position_of(warp_row())) mask(scores, ds, position_of);
    LeftBlock<kM, kColumns> factor;
    round_left<kM, kColumns>(factor, scores);
    multiply_columns<kM, kColumns, kDim>(dvalues, factor, rows.dout, warp_row());
    round_left<kM, kColumns>(factor, ds);
    multiply_columns<kM, kColumns, kDim>(dkeys, factor, rows.q, warp_row());
  }

  // Rows do not see the keys behind their positions.
  template <typename Position>
  __device__ void mask(SumBlock<kM, kColumns>& scores, SumBlock<kM, kColumns>& ds,
                       const Position& position_of) const {
    const int key = first_key + warp_key() + lane_index() / kRowThreads;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int position = position_of(warp_row() + 8 * n + lane_index() % kRowThreads * 2 + i);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (key + 16 * m + 8 * half <= position) continue;
            scores[m][n][2 * half + i] = 0.0f;
            ds[m][n][2 * half + i] = 0.0f;
          }
        }
      }
    }
  }

  // Adds up what the warps of the same keys have, in the order of their rows, into the first of
  // them; by way of `shared`, which nobody uses any more.
  __device__ void join(float* shared) {
    constexpr int kSums = 2 * kM * kDim / 2;  // a lane's
    if (kRowWarps == 1) return;
    static_assert(kRowWarps <= 2);
    float* place = shared + warp() % kKeyWarps * kSums * 32 + lane_index();
    const auto each = [&](const auto& body) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = (m * (kDim / 8) + n) * 4 + i;
            body(dkeys[m][n][i], place[at * 32]);
            body(dvalues[m][n][i], place[(at + kSums / 2) * 32]);
          }
        }
      }
    };
    __syncthreads();
    if (warp() >= kKeyWarps) each([](float& own, float& to) { to = own; });
    __syncthreads();
    if (warp() < kKeyWarps) each([](float& own, float& from) { own = __fadd_rn(own, from); });
  }
};

template <int kDim>
__global__ void __launch_bounds__(kBackwardThreads, kBackwardBlocks)
    key_gradients_kernel(BackwardOperands operands) {
  extern __shared__ __align__(256) unsigned char shared[];
  constexpr int kM = WarpBlock<kDim>::kM;
  constexpr int kTileBytes = kTileKeys * Tile<kDim>::kRowBytes;
  const AttentionView& view = operands.view;
  // The first keys, which most rows see, come first.
  const int sequence_head = static_cast<int>(blockIdx.x) % (view.num_sequences * view.kv_heads);
  const int first_key =
      static_cast<int>(blockIdx.x) / (view.num_sequences * view.kv_heads) * kTileKeys;
  const int head = sequence_head % view.kv_heads;
  const DeviceSequence sequence(view, sequence_head / view.kv_heads);
  if (first_key >= sequence.num_queries) return;
  const SharedAddress start = shared_address(shared);
  KeyGradients<kDim> gradients{{start}, {start + kTileBytes}, first_key, {}, {}};
  const auto row_tile = [&](int index) {
    return RowTile<kDim>(start + 2 * kTileBytes +
                         static_cast<SharedAddress>(index % 2 * RowTile<kDim>::kBytes));
  };
  copy_row_pairs<kBackwardThreads, kTileKeys, kDim>(
      gradients.keys, operands.keys, gradients.values, operands.values,
      sequence.num_queries - first_key,
      [&](int row) { return key_index(view, sequence, head, first_key + row) * kDim; });
  // Rows before the first key's position see none of them.
  const int first_row = first_key * view.group;
  const int num_tiles = (sequence.num_queries * view.group - first_row + kTileRows - 1) / kTileRows;
  row_tile(0).begin(operands, sequence, head, first_row);
  for (int tile = 0; tile < num_tiles; ++tile) {
    wait_for_copies();
    // After this every warp is done with the tile before, whose place the next one takes.
    __syncthreads();
    const int tile_row = first_row + tile * kTileRows;
    if (tile + 1 < num_tiles) {
      row_tile(tile + 1).begin(operands, sequence, head, tile_row + kTileRows);
    }
    gradients.add(
        row_tile(tile), [&](int row) { return view.positions_before(tile_row + row); },
        operands.scale_log2);
  }
  gradients.join(reinterpret_cast<float*>(shared + 2 * kTileBytes));
  if (KeyGradients<kDim>::warp() >= KeyGradients<kDim>::kKeyWarps) return;
  const auto store = [&](const Tile<kDim>& tile, const float(&sums)[kDim / 8][4], int m,
                         __nv_bfloat16* all) {
    store_rows(tile, KeyGradients<kDim>::warp_key() + 16 * m, sums, [&](int row) {
      return first_key + row < sequence.num_queries
                 ? all + key_index(view, sequence, head, first_key + row) * kDim
                 : nullptr;
    });
  };
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    scale_sums<kDim>(gradients.dkeys[m], operands.scale);
    store(gradients.keys, gradients.dkeys[m], m, operands.dkeys);
    store(gradients.values, gradients.dvalues[m], m, operands.dvalues);
  }
}

template <int kDim>
void launch_for_dim(const char* op, const BackwardOperands& operands, OpContext& ctx) {
  const AttentionView& view = operands.view;
  constexpr int64_t kSharedBytes =
      2 * kTileKeys * Tile<kDim>::kRowBytes + 2 * RowTile<kDim>::kBytes;
  launch_with_shared(op, key_gradients_kernel<kDim>,
                     ceil_div(operands.longest, kTileKeys) * view.num_sequences * view.kv_heads,
                     kBackwardThreads, kSharedBytes, ctx, operands);
}

}  // namespace

void launch_key_gradients(const char* op, const BackwardOperands& operands, OpContext& ctx) {
  if (operands.view.head_dim == 64) {
    launch_for_dim<64>(op, operands, ctx);
  } else {
    launch_for_dim<128>(op, operands, ctx);
  }
}

}  // namespace grpo::ops::cuda
