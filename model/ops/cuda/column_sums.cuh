// Sums down the columns of a matrix that is made up row by row, without atomics: chunks of rows,
// each in an order of its own, then runs of chunks in ascending order, then the runs in ascending
// order.
#pragma once

#include "model/ops/cuda/element_groups.cuh"

namespace grpo::ops::cuda {

constexpr int kRowsPerChunk = 32;
constexpr int kColumnThreads = 128;
constexpr int kJoinColumns = 32;  // of a block that joins chunks
constexpr int kJoinRuns = 16;     // a warp each

template <typename Term>
__global__ void __launch_bounds__(kColumnThreads)
    column_chunk_sums_kernel(float* partial /* [chunks, columns] */, Term term, int64_t rows,
                             int64_t columns, unsigned blocks_per_chunk) {
  constexpr int kWidth = Term::kWidth;
  const int64_t chunk = blockIdx.x / blocks_per_chunk;
  const int64_t block = blockIdx.x % blocks_per_chunk;
  const int64_t first = (block * kColumnThreads + threadIdx.x) * kWidth;
  if (first >= columns) return;
  const int64_t left = columns - first;
  const int count = left < kWidth ? static_cast<int>(left) : kWidth;
  const int64_t begin = chunk * kRowsPerChunk;
  const int64_t end = begin + kRowsPerChunk < rows ? begin + kRowsPerChunk : rows;
  float sums[kWidth] = {};
#pragma unroll 8
  for (int64_t row = begin; row < end; ++row) term.add(sums, row, first, count);
  store_group(partial + chunk * columns + first, sums, count, term.aligned);
}

static __global__ void __launch_bounds__(kJoinColumns* kJoinRuns)
    join_column_chunks_kernel(float* out, const float* partial, int64_t chunks, int64_t columns,
                              bool accumulate) {
  __shared__ float runs[kJoinRuns][kJoinColumns];
  const int lane = static_cast<int>(threadIdx.x) % kJoinColumns;
  const int run = static_cast<int>(threadIdx.x) / kJoinColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kJoinColumns + lane;
  float sum = 0.0f;
  if (column < columns) {
    const int64_t length = (chunks + kJoinRuns - 1) / kJoinRuns;
    const int64_t begin = run * length;
    const int64_t end = begin + length < chunks ? begin + length : chunks;
#pragma unroll 8
    for (int64_t chunk = begin; chunk < end; ++chunk)
      sum = __fadd_rn(sum, partial[chunk * columns + column]);
  }
  runs[run][lane] = sum;
  __syncthreads();
  if (run != 0 || column >= columns) return;
  if (accumulate) sum = __fadd_rn(out[column], sum);
#pragma unroll
  for (int i = 1; i < kJoinRuns; ++i) sum = __fadd_rn(sum, runs[i][lane]);
  out[column] = sum;
}

// out[columns] = (out +) sum over chunks of partial [chunks, columns].
inline void join_column_chunks(const char* op, const Tensor& out, const float* partial,
                               int64_t chunks, bool accumulate, const OpContext& ctx) {
  const int64_t columns = out.num_elements();
  launch(op, join_column_chunks_kernel, ceil_div(columns, kJoinColumns), kJoinColumns * kJoinRuns,
         ctx, out.data<float>(), partial, chunks, columns, accumulate);
}

// out[columns] = (out +) sum over rows. Term has kWidth, `aligned` (false unless columns is a
// multiple of kWidth) and add(float (&sums)[kWidth], row, first column, count), which adds one
// row's terms.
template <typename Term>
void column_sums(const char* op, const Tensor& out, const Term& term, int64_t rows, bool accumulate,
                 OpContext& ctx) {
  const int64_t columns = out.num_elements();
  const int64_t chunks = ceil_div(rows, kRowsPerChunk);
  const int64_t blocks_per_chunk = ceil_div(columns, int64_t{kColumnThreads} * Term::kWidth);
  const Workspace::Scope scope(ctx.workspace);
  float* partial = ctx.workspace.take(DType::kFloat32, {chunks, columns}).template data<float>();
  launch(op, column_chunk_sums_kernel<Term>, chunks * blocks_per_chunk, kColumnThreads, ctx,
         partial, term, rows, columns, static_cast<unsigned>(blocks_per_chunk));
  join_column_chunks(op, out, partial, chunks, accumulate, ctx);
}

}  // namespace grpo::ops::cuda
