// Tiles of bfloat16 rows in shared memory, and their products on tensor cores, for attention. All
// tiles are [rows][kDim]; the 16-byte chunks of a row are permuted by the row's number, so that
// eight rows' chunks of one column lie in different banks. A warp's block of sums has 16 kM rows:
// each right factor that it loads serves kM products.
#pragma once

#include <initializer_list>

#include "model/ops/cuda/attention_view.cuh"
#include "model/ops/cuda/tensor_core.cuh"

namespace grpo::ops::cuda {

constexpr int kTileKeys = 64;   // the one tile width of all passes
constexpr int kRowThreads = 4;  // lanes that share a row of a warp's sums
constexpr float kLog2E = 1.44269504088896341f;

// bfloat16 of the head dims that models have.
inline bool has_tensor_core_kernel(const Tensor& q) {
  return q.dtype() == DType::kBfloat16 && (q.size(2) == 64 || q.size(2) == 128);
}

// Rows are copied in 16 bytes; the running maximum is of scores before they are scaled.
inline void check_tile_operands(const char* op, std::initializer_list<const Tensor*> tensors,
                                float scale) {
  CHECK(scale > 0.0f, "{}: scale {}", op, scale);
  for (const Tensor* tensor : tensors) {
    CHECK(reinterpret_cast<uintptr_t>(tensor->raw()) % 16 == 0,
          "{}: a bfloat16 {} is not aligned to 16 bytes", op, tensor->shape().to_string());
  }
}

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

template <int kDim>
struct Tile {
  static constexpr int kChunks = kDim / 8;
  static constexpr int kRowBytes = kDim * 2;
  SharedAddress address;  // a multiple of kRowBytes

  __device__ SharedAddress at(int row, int chunk) const {
    return address + static_cast<SharedAddress>(row * kRowBytes + (chunk ^ (row & 7)) * 16);
  }

  // This lane's row of four matrices in rows [first, first + 16), columns [0, 16): a left factor's,
  // or, transposed, a right factor's of 16 rows. `first` is a multiple of 8.
  __device__ SharedAddress rows_at(int first) const {
    return at(first + lane_index() % 16, lane_index() / 16);
  }
  // The same of a right factor's 16 columns, which are rows of the tile.
  __device__ SharedAddress columns_at(int first) const {
    return at(first + lane_index() % 8 + lane_index() / 16 * 8, lane_index() / 8 % 2);
  }
  // From a lane's place to the one 16 columns times `block` and 16 rows times `rows` further on.
  static __device__ SharedAddress further(SharedAddress place, int block, int rows) {
    return (place ^ static_cast<SharedAddress>(block * 32)) +
           static_cast<SharedAddress>(rows * 16 * kRowBytes);
  }
};

// 16 kM rows of a matrix of kColumns columns, as left factors.
template <int kM, int kColumns>
using LeftBlock = unsigned[kColumns / 16][kM][4];

template <int kM, int kColumns>
using SumBlock = float[kM][kColumns / 8][4];

template <int kM, int kDim>
__device__ inline void load_left_step(unsigned (&left)[kM][4], SharedAddress rows, int step) {
#pragma unroll
  for (int m = 0; m < kM; ++m) load_matrices(left[m], Tile<kDim>::further(rows, step, m));
}

template <int kM, int kDim>
__device__ inline void load_left(LeftBlock<kM, kDim>& left, const Tile<kDim>& tile, int first) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
    load_left_step<kM, kDim>(left[step], tile.rows_at(first), step);
}

// One step of multiply_rows: 16 of the kDim columns.
template <int kM, int kColumns, int kDim>
__device__ inline void multiply_rows_step(SumBlock<kM, kColumns>& sums,
                                          const unsigned (&left)[kM][4], SharedAddress columns,
                                          int step) {
#pragma unroll
  for (int n = 0; n < kColumns / 16; ++n) {
    unsigned right[4];
    load_matrices(right, Tile<kDim>::further(columns, step, n));
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      multiply_add(sums[m][2 * n], left[m], right[0], right[1]);
      multiply_add(sums[m][2 * n + 1], left[m], right[2], right[3]);
    }
  }
}

// sums [16 kM, kColumns] += left [16 kM, kDim] times the transpose of the tile's rows [first, first
// + kColumns): each element one chain, 16 columns after 16.
template <int kM, int kColumns, int kDim>
__device__ inline void multiply_rows(SumBlock<kM, kColumns>& sums, const LeftBlock<kM, kDim>& left,
                                     const Tile<kDim>& tile, int first) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    multiply_rows_step<kM, kColumns, kDim>(sums, left[step], tile.columns_at(first), step);
  }
}

// The same with the left factor in shared memory, where registers are scarce.
template <int kM, int kColumns, int kDim>
__device__ inline void multiply_rows(SumBlock<kM, kColumns>& sums, const Tile<kDim>& left,
                                     int left_first, const Tile<kDim>& tile, int first) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    unsigned rows[kM][4];
    load_left_step<kM, kDim>(rows, left.rows_at(left_first), step);
    multiply_rows_step<kM, kColumns, kDim>(sums, rows, tile.columns_at(first), step);
  }
}

// sums [16 kM, kDim] += left [16 kM, kColumns] times the tile's rows [first, first + kColumns):
// each element goes on with its chain, 16 rows of the tile after 16.
template <int kM, int kColumns, int kDim>
__device__ inline void multiply_columns(SumBlock<kM, kDim>& sums,
                                        const LeftBlock<kM, kColumns>& left, const Tile<kDim>& tile,
                                        int first) {
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step) {
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      unsigned right[4];
      load_transposed_matrices(right, Tile<kDim>::further(tile.rows_at(first), n, step));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add(sums[m][2 * n], left[step][m], right[0], right[1]);
        multiply_add(sums[m][2 * n + 1], left[step][m], right[2], right[3]);
      }
    }
  }
}

// A warp's sums, rounded, as a left factor.
template <int kM, int kColumns>
__device__ inline void round_left(LeftBlock<kM, kColumns>& left,
                                  const SumBlock<kM, kColumns>& sums) {
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const float(&low)[4] = sums[m][2 * step];
      const float(&high)[4] = sums[m][2 * step + 1];
      left[step][m][0] = round_pair(low[0], low[1]);
      left[step][m][1] = round_pair(low[2], low[3]);
      left[step][m][2] = round_pair(high[0], high[1]);
      left[step][m][3] = round_pair(high[2], high[3]);
    }
  }
}

// Begins to copy `count` rows into a tile; source(row) is where a row's kDim elements lie, or null
// for a row of zeros.
template <int kThreads, int kDim, typename Source>
__device__ inline void copy_rows(const Tile<kDim>& tile, int count, const __nv_bfloat16* any,
                                 Source&& source) {
  constexpr int kRowsAtOnce = kThreads / Tile<kDim>::kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % Tile<kDim>::kChunks;
  for (int row = static_cast<int>(threadIdx.x) / Tile<kDim>::kChunks; row < count;
       row += kRowsAtOnce) {
    const __nv_bfloat16* from = source(row);
    copy_16_bytes(tile.at(row, chunk), from == nullptr ? any : from + chunk * 8, from != nullptr);
  }
}

// The same of kRows rows at offset(row) elements of each of two matrices, into a tile each; rows
// from `count` on become zeros. All lanes call offset together, also for such rows.
template <int kThreads, int kRows, int kDim, typename Offset>
__device__ inline void copy_row_pairs(const Tile<kDim>& tile_a, const __nv_bfloat16* a,
                                      const Tile<kDim>& tile_b, const __nv_bfloat16* b, int count,
                                      Offset&& offset) {
  constexpr int kRowsAtOnce = kThreads / Tile<kDim>::kChunks;
  static_assert(kRows % kRowsAtOnce == 0);
  const int first = static_cast<int>(threadIdx.x) / Tile<kDim>::kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % Tile<kDim>::kChunks;
  const SharedAddress place = tile_a.at(first, chunk);
  const SharedAddress distance = tile_b.address - tile_a.address;
#pragma unroll
  for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
    const int row = first + i * kRowsAtOnce;
    const bool valid = row < count;
    const int64_t inside = offset(row) + chunk * 8;
    const int64_t at = valid ? inside : 0;
    // Rows 8 apart have their chunks in the same places.
    const SharedAddress to =
        kRowsAtOnce % 8 == 0
            ? place + static_cast<SharedAddress>(i * kRowsAtOnce * Tile<kDim>::kRowBytes)
            : tile_a.at(row, chunk);
    copy_16_bytes(to, a + at, valid);
    copy_16_bytes(to + distance, b + at, valid);
  }
}

// Writes a warp's [16, kDim] sums, rounded, to rows of global memory by way of its rows of a tile
// that no other warp uses any more; destination(row) is null for a row that is not there.
template <int kDim, typename Destination>
__device__ inline void store_rows(const Tile<kDim>& tile, int first,
                                  const float (&sums)[kDim / 8][4], Destination&& destination) {
  const int lane = lane_index();
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const SharedAddress place = tile.at(first + lane / kRowThreads + 8 * half, n) +
                                  static_cast<SharedAddress>(lane % kRowThreads * 4);
      store_shared(place, round_pair(sums[n][2 * half], sums[n][2 * half + 1]));
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 * Tile<kDim>::kChunks / 32; ++i) {
    const int row = (i * 32 + lane) / Tile<kDim>::kChunks;
    const int chunk = (i * 32 + lane) % Tile<kDim>::kChunks;
    __nv_bfloat16* to = destination(first + row);
    if (to != nullptr) {
      *reinterpret_cast<uint4*>(to + chunk * 8) = load_shared_16_bytes(tile.at(first + row, chunk));
    }
  }
}

// Slots of the keys of a tile whose keys do not follow each other: each lane of a warp looks up two
// of them, for all; a lookup costs a division and a load.
struct TileSlots {
  int own[kTileKeys / 32];  // of keys lane, lane + 32

  __device__ TileSlots(const DeviceSequence& sequence, int first_key, int num_keys) {
#pragma unroll
    for (int i = 0; i < kTileKeys / 32; ++i) {
      const int key = first_key + 32 * i + lane_index();
      own[i] = key < num_keys ? static_cast<int>(sequence.slot(key)) : 0;
    }
  }

  // Of the tile's key `row`. All lanes of a warp ask together, for keys of one half of the tile.
  __device__ int64_t slot(int row) const {
    return __shfl_sync(0xffffffffu, row < 32 ? own[0] : own[1], row % 32);
  }
};
static_assert(kTileKeys == 64);

}  // namespace grpo::ops::cuda
