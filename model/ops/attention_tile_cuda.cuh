// Tiles of bfloat16 rows in shared memory, and their products on tensor cores, for attention. All
// tiles are [rows][kDim]; the 16-byte chunks of a row are permuted by the row's number, so that
// eight rows' chunks of one column lie in different banks.
#pragma once

#include <initializer_list>

#include "model/ops/attention_view_cuda.cuh"
#include "model/ops/tensor_core_cuda.cuh"

namespace grpo::ops {

constexpr int kTileKeys = 64;   // the one tile width of all passes
constexpr int kWarpRows = 16;   // rows that a warp works on
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

template <int kDim>
struct Tile {
  static constexpr int kChunks = kDim / 8;
  __nv_bfloat16* data;

  __device__ __nv_bfloat16* at(int row, int chunk) const {
    return data + row * kDim + (chunk ^ (row & 7)) * 8;
  }
};

// A matrix of kDim columns as the left factor of a warp: its 16 rows in registers.
template <int kDim>
using LeftRows = unsigned[kDim / 16][4];

template <int kDim>
__device__ inline void load_left_rows(LeftRows<kDim>& left, const Tile<kDim>& tile, int first_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
    load_matrices(left[step], tile.at(first_row + lane % 16, 2 * step + lane / 16));
}

// One step of multiply_rows: 16 of the kDim columns.
template <int kDim>
__device__ inline void multiply_rows_step(float (&sums)[kTileKeys / 8][4],
                                          const unsigned (&left)[4], const Tile<kDim>& tile,
                                          int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kTileKeys / 16; ++n) {
    unsigned right[4];
    load_matrices(right, tile.at(16 * n + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
    multiply_add(sums[2 * n], left, right[0], right[1]);
    multiply_add(sums[2 * n + 1], left, right[2], right[3]);
  }
}

// sums [16, 64] += left [16, kDim] tile [64, kDim]^T: each element one chain, 16 columns after 16.
template <int kDim>
__device__ inline void multiply_rows(float (&sums)[kTileKeys / 8][4], const LeftRows<kDim>& left,
                                     const Tile<kDim>& tile) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) multiply_rows_step(sums, left[step], tile, step);
}

// The same with the left factor in shared memory, where registers are scarce.
template <int kDim>
__device__ inline void multiply_rows(float (&sums)[kTileKeys / 8][4], const Tile<kDim>& left,
                                     int first_row, const Tile<kDim>& tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    unsigned rows[4];
    load_matrices(rows, left.at(first_row + lane % 16, 2 * step + lane / 16));
    multiply_rows_step(sums, rows, tile, step);
  }
}

// sums [16, kDim] += left [16, 64] tile [64, kDim]: each element goes on with its chain, 16 rows of
// the tile after 16.
template <int kDim>
__device__ inline void multiply_columns(float (&sums)[kDim / 8][4], const LeftRows<kTileKeys>& left,
                                        const Tile<kDim>& tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 0; step < kTileKeys / 16; ++step) {
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      unsigned right[4];
      load_transposed_matrices(right, tile.at(16 * step + lane % 16, 2 * n + lane / 16));
      multiply_add(sums[2 * n], left[step], right[0], right[1]);
      multiply_add(sums[2 * n + 1], left[step], right[2], right[3]);
    }
  }
}

// A warp's [16, 64] sums, rounded, as a left factor.
__device__ inline void round_left(LeftRows<kTileKeys>& left,
                                  const float (&sums)[kTileKeys / 8][4]) {
#pragma unroll
  for (int step = 0; step < kTileKeys / 16; ++step) {
    left[step][0] = round_pair(sums[2 * step][0], sums[2 * step][1]);
    left[step][1] = round_pair(sums[2 * step][2], sums[2 * step][3]);
    left[step][2] = round_pair(sums[2 * step + 1][0], sums[2 * step + 1][1]);
    left[step][3] = round_pair(sums[2 * step + 1][2], sums[2 * step + 1][3]);
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

// Writes a warp's [16, kDim] sums, rounded, to rows of global memory by way of its rows of a tile
// that no other warp uses any more; destination(row) is null for a row that is not there.
template <int kDim, typename Destination>
__device__ inline void store_rows(const Tile<kDim>& tile, int first_row,
                                  const float (&sums)[kDim / 8][4], Destination&& destination) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      __nv_bfloat16* place =
          tile.at(first_row + lane / kRowThreads + 8 * half, n) + lane % kRowThreads * 2;
      *reinterpret_cast<unsigned*>(place) = round_pair(sums[n][2 * half], sums[n][2 * half + 1]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kWarpRows * Tile<kDim>::kChunks / 32; ++i) {
    const int row = (i * 32 + lane) / Tile<kDim>::kChunks;
    const int chunk = (i * 32 + lane) % Tile<kDim>::kChunks;
    __nv_bfloat16* to = destination(first_row + row);
    if (to != nullptr) {
      *reinterpret_cast<uint4*>(to + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile.at(first_row + row, chunk));
    }
  }
}

// Slots of the keys of a tile. Where pages are whole tiles, or one page holds all, a tile's keys
// follow each other from one slot. Elsewhere each lane of a warp looks up two of them, for all: a
// lookup costs a division and a load.
struct TileSlots {
  bool follows;
  int first;                // slot of the first key, where they follow it
  int own[kTileKeys / 32];  // elsewhere: slots of keys lane, lane + 32

  __device__ TileSlots(const DeviceSequence& sequence, int first_key, int num_keys,
                       bool tiles_follow)
      : follows(tiles_follow) {
    if (follows) {
      first = static_cast<int>(sequence.slot(first_key));
      return;
    }
#pragma unroll
    for (int i = 0; i < kTileKeys / 32; ++i) {
      const int key = first_key + 32 * i + static_cast<int>(threadIdx.x) % 32;
      own[i] = key < num_keys ? static_cast<int>(sequence.slot(key)) : 0;
    }
  }

  // Of the tile's key `row`. All lanes of a warp ask together, for keys of one half of the tile.
  __device__ int64_t slot(int row) const {
    if (follows) return first + row;
    return __shfl_sync(0xffffffffu, row < 32 ? own[0] : own[1], row % 32);
  }
};
static_assert(kTileKeys == 64);

}  // namespace grpo::ops
