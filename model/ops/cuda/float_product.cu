// A block computes a tile of kTile x kTile elements, a thread kPerThread x kPerThread of them.
#include "model/ops/cuda/float_product.h"

#include "model/ops/cuda/launch.cuh"

namespace grpo::ops::cuda {

namespace {

constexpr int kTile = 64;
constexpr int kDepth = 16;
constexpr int kPerThread = 4;
constexpr int kSide = kTile / kPerThread;  // threads along each side of a tile
constexpr int kProductThreads = kSide * kSide;
constexpr int kPadded = kTile + 4;  // keeps rows aligned to 16 bytes and off each other's banks

// Elements [first, first + kTile) x [k0, k0 + kDepth) of a matrix whose long side has
// `long_stride`; zeros outside. Neighbouring threads read neighbours in memory.
__device__ void load_tile(float (&tile)[kDepth][kPadded], const float* data, int64_t long_stride,
                          int64_t k_stride, int64_t first, int64_t size, int64_t k0, int64_t k) {
  const bool along_k = k_stride == 1;
#pragma unroll
  for (int i = 0; i < kTile * kDepth / kProductThreads; ++i) {
    const int at = i * kProductThreads + static_cast<int>(threadIdx.x);
    const int row = along_k ? at / kDepth : at % kTile;
    const int depth = along_k ? at % kDepth : at / kTile;
    const bool inside = first + row < size && k0 + depth < k;
    tile[depth][row] = inside ? data[(first + row) * long_stride + (k0 + depth) * k_stride] : 0.0f;
  }
}

__device__ inline void multiply_step(float (&sums)[kPerThread][kPerThread], const float* a,
                                     const float* b) {
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) sums[i][j] = __fmaf_rn(a[i], b[j], sums[i][j]);
  }
}

__global__ void __launch_bounds__(kProductThreads)
    float_product_kernel(FloatProduct p, unsigned blocks_per_row) {
  __shared__ __align__(16) float a_tile[kDepth][kPadded];
  __shared__ __align__(16) float b_tile[kDepth][kPadded];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / blocks_per_row) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x % blocks_per_row) * kTile;
  const int row = static_cast<int>(threadIdx.x) / kSide * kPerThread;
  const int column = static_cast<int>(threadIdx.x) % kSide * kPerThread;
  float sums[kPerThread][kPerThread] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
    load_tile(a_tile, p.a.data, p.a.row_stride, p.a.column_stride, first_row, p.m, k0, p.k);
    load_tile(b_tile, p.b.data, p.b.column_stride, p.b.row_stride, first_column, p.n, k0, p.k);
    __syncthreads();
    if (p.k - k0 >= kDepth) {
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth)
        multiply_step(sums, &a_tile[depth][row], &b_tile[depth][column]);
    } else {
      // Not one step beyond k: adding 0 * 0 would turn a sum of -0 into 0.
      for (int depth = 0; depth < static_cast<int>(p.k - k0); ++depth)
        multiply_step(sums, &a_tile[depth][row], &b_tile[depth][column]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int64_t m = first_row + row + i;
      const int64_t n = first_column + column + j;
      if (m >= p.m || n >= p.n) continue;
      float sum = sums[i][j];
      if (p.bias != nullptr) sum = __fadd_rn(sum, p.bias[n]);
      float* c = p.c + m * p.n + n;
      *c = p.accumulate ? __fadd_rn(*c, sum) : sum;
    }
  }
}

}  // namespace

void float_product(const char* op, const FloatProduct& product, const OpContext& ctx) {
  const int64_t blocks_per_row = ceil_div(product.n, kTile);
  launch(op, float_product_kernel, ceil_div(product.m, kTile) * blocks_per_row, kProductThreads,
         ctx, product, static_cast<unsigned>(blocks_per_row));
}

}  // namespace grpo::ops::cuda
