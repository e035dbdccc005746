// T tokens, V vocabulary, D model. Tokens are sorted (stably, so equal tokens stay in ascending t);
// the block of the first of equal tokens adds all their rows, one after the other.
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/cuda/index_check.cuh"

namespace grpo::ops::cuda {

namespace {

constexpr int kNumberThreads = 256;
constexpr int kRowThreads = 128;

// Checks the tokens and numbers their rows.
__global__ void number_rows_kernel(int32_t* rows, const int32_t* tokens, int64_t count,
                                   int64_t vocabulary) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kNumberThreads + threadIdx.x;
  if (t >= count) return;
  check_index(tokens[t], t, vocabulary);
  rows[t] = static_cast<int32_t>(t);
}

struct SortedTokens {
  int32_t* tokens;  // [T] ascending
  int32_t* rows;    // [T] where each came from
};

// The result lies in the workspace.
SortedTokens sort_tokens(const char* op, const Tensor& tokens, int64_t vocabulary, OpContext& ctx) {
  const int64_t count = tokens.size(0);
  CHECK(count <= std::numeric_limits<int32_t>::max(), "{}: {} tokens", op, count);
  Workspace& workspace = ctx.workspace;
  const auto take = [&] { return workspace.take(DType::kInt32, {count}).data<int32_t>(); };
  int32_t* numbers = take();
  const SortedTokens sorted{take(), take()};
  launch(op, number_rows_kernel, ceil_div(count, kNumberThreads), kNumberThreads, ctx, numbers,
         tokens.data<int32_t>(), count, vocabulary);
  const int bits = std::bit_width(static_cast<uint64_t>(vocabulary));
  const auto sort = [&](void* scratch, size_t& scratch_bytes) {
    CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
        scratch, scratch_bytes, tokens.data<int32_t>(), sorted.tokens, numbers, sorted.rows,
        static_cast<int>(count), 0, bits, cuda_stream(ctx.stream)));
  };
  size_t scratch_bytes = 0;
  sort(nullptr, scratch_bytes);
  const Tensor scratch = workspace.take(DType::kUint8, {static_cast<int64_t>(scratch_bytes)});
  sort(scratch.raw(), scratch_bytes);
  return sorted;
}

constexpr int kRowsAhead = 8;  // loaded before they are added

// Behind the last of the tokens equal to the one at `begin`.
__device__ inline int64_t end_of_equal(const int32_t* tokens, int64_t begin, int64_t count) {
  int64_t low = begin + 1;
  int64_t high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (tokens[middle] == tokens[begin]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Adds to dweight [V, D], which is zero or holds what to add to.
template <typename D>
__global__ void __launch_bounds__(kRowThreads)
    add_equal_tokens_kernel(float* dweight, const D* dout, SortedTokens sorted, int64_t count,
                            int64_t size, bool aligned) {
  constexpr int kWidth = kGroupWidth<D>;
  const int64_t begin = blockIdx.x;
  const int32_t token = sorted.tokens[begin];
  if (begin > 0 && sorted.tokens[begin - 1] == token) return;
  float* sums_row = dweight + token * size;
  const int64_t end = end_of_equal(sorted.tokens, begin, count);
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * kWidth; first < size;
       first += kRowThreads * kWidth) {
    const int64_t left = size - first;
    const int width = left < kWidth ? static_cast<int>(left) : kWidth;
    float sums[kWidth];
    load_group(sums, sums_row + first, width, aligned);
    for (int64_t i = begin; i < end; i += kRowsAhead) {
      Packet<D, kWidth> rows[kRowsAhead];
#pragma unroll
      for (int r = 0; r < kRowsAhead; ++r) {
        const int64_t row = sorted.rows[i + r < end ? i + r : begin];
        rows[r] = load_packet<kWidth>(dout + row * size + first, width, aligned);
      }
#pragma unroll
      for (int r = 0; r < kRowsAhead; ++r) {
        if (i + r >= end) break;
#pragma unroll
        for (int j = 0; j < kWidth; ++j)
          sums[j] = __fadd_rn(sums[j], to_float(rows[r].elements[j]));
      }
    }
    store_group(sums_row + first, sums, width, aligned);
  }
}

}  // namespace

void embedding_backward(const Tensor& dweight, const Tensor& dout, const Tensor& tokens,
                        bool accumulate, OpContext& ctx) {
  const char* op = "embedding_backward";
  const int64_t count = dout.size(0);
  const int64_t size = dweight.size(1);
  if (!accumulate) fill_zero(dweight, ctx.stream);
  if (count == 0 || size == 0) return;
  const Workspace::Scope scope(ctx.workspace);
  const SortedTokens sorted = sort_tokens(op, tokens, dweight.size(0), ctx);
  dispatch_device_type(op, dout.dtype(), [&]<typename D>(D) {
    constexpr int kWidth = kGroupWidth<D>;
    float* sums = dweight.data<float>();
    const D* rows = device_data<D>(dout);
    const bool aligned = size % kWidth == 0 && is_aligned<kWidth>(sums) && is_aligned<kWidth>(rows);
    launch(op, add_equal_tokens_kernel<D>, count, kRowThreads, ctx, sums, rows, sorted, count, size,
           aligned);
  });
}

}  // namespace grpo::ops::cuda
