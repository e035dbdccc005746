// N elements.
#include "model/ops/reduce_cuda.h"

#include <vector>

#include "model/core/device_cuda.h"
#include "model/ops/block_sum_cuda.cuh"
#include "model/ops/element_groups_cuda.cuh"
#include "model/ops/workspace_array.h"

namespace grpo::ops {

namespace {

constexpr int kSumThreads = 256;
constexpr int kFloatWidth = kGroupWidth<float>;
constexpr int kGroupsPerThread = 16;
constexpr int64_t kElementsPerChunk = int64_t{kSumThreads} * kGroupsPerThread * kFloatWidth;

// One of several arrays, which are cut into chunks, numbered from the first array's on.
struct SummedArray {
  const float* x;
  int64_t size;
  int64_t first_chunk;
  int64_t num_chunks;
  bool aligned;
};

// The array that a chunk belongs to: the last that does not start behind it and has any.
__device__ inline int array_of_chunk(const SummedArray* arrays, int num_arrays, int64_t chunk) {
  int low = 0;
  int high = num_arrays - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (arrays[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Block b sums chunk b; thread i owns its groups i, i + kSumThreads, ...
__global__ void __launch_bounds__(kSumThreads)
    square_sums_kernel(double* partial /* [chunks] */, const SummedArray* arrays, int num_arrays) {
  __shared__ double scratch[1][kSumThreads / 32];
  const SummedArray array = arrays[array_of_chunk(arrays, num_arrays, blockIdx.x)];
  const int64_t begin = (blockIdx.x - array.first_chunk) * kElementsPerChunk;
  double sum = 0.0;
#pragma unroll 4
  for (int group = 0; group < kGroupsPerThread; ++group) {
    const int64_t first = begin + (int64_t{group} * kSumThreads + threadIdx.x) * kFloatWidth;
    if (first >= array.size) break;
    const int64_t left = array.size - first;
    float values[kFloatWidth];
    load_group(values, array.x + first, left < kFloatWidth ? static_cast<int>(left) : kFloatWidth,
               array.aligned);
#pragma unroll
    for (int i = 0; i < kFloatWidth; ++i) {
      const double value = values[i];
      sum = __fma_rn(value, value, sum);
    }
  }
  sum = block_sum<kSumThreads>(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// A block an array; thread i owns the partial sums i, i + kSumThreads, ... of its chunks.
__global__ void __launch_bounds__(kSumThreads)
    join_sums_kernel(double* totals /* [arrays] */, const double* partial,
                     const SummedArray* arrays) {
  __shared__ double scratch[1][kSumThreads / 32];
  const SummedArray array = arrays[blockIdx.x];
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < array.num_chunks; i += kSumThreads) {
    sum = __dadd_rn(sum, partial[array.first_chunk + i]);
  }
  sum = block_sum<kSumThreads>(sum, scratch);
  if (threadIdx.x == 0) totals[blockIdx.x] = sum;
}

// Groups as wide as four floats, so that both sides are packets.
template <typename To, typename From>
struct Convert {
  static constexpr int kWidth = kFloatWidth;
  To* to;
  const From* from;
  bool aligned;

  __device__ void operator()(int64_t, int64_t first, int count) const {
    float values[kWidth];
    load_group(values, from + first, count, aligned);
    store_group(to + first, values, count, aligned);
  }
};

template <typename To, typename From>
void convert_elements(const Tensor& destination, const Tensor& source, OpContext& ctx) {
  Convert<To, From> body{device_data<To>(destination), device_data<From>(source), false};
  body.aligned = is_aligned<kFloatWidth>(body.to) && is_aligned<kFloatWidth>(body.from);
  for_each_group("convert", body, 1, source.num_elements(), ctx);
}

struct AddInto {
  static constexpr int kWidth = kFloatWidth;
  float* y;
  const float* x;
  bool aligned;

  __device__ void operator()(int64_t, int64_t first, int count) const {
    float sum[kWidth];
    float added[kWidth];
    load_group(sum, y + first, count, aligned);
    load_group(added, x + first, count, aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] = __fadd_rn(sum[i], added[i]);
    store_group(y + first, sum, count, aligned);
  }
};

}  // namespace

void sums_of_squares_cuda(std::span<double> sums, std::span<const Tensor> xs, OpContext& ctx) {
  const char* op = "sums_of_squares";
  if (xs.empty()) return;
  const auto num_arrays = static_cast<int64_t>(xs.size());
  std::vector<SummedArray> arrays;
  int64_t num_chunks = 0;
  for (const Tensor& x : xs) {
    const int64_t own_chunks = ceil_div(x.num_elements(), kElementsPerChunk);
    const auto* data = x.data<float>();
    arrays.push_back(
        {data, x.num_elements(), num_chunks, own_chunks, is_aligned<kFloatWidth>(data)});
    num_chunks += own_chunks;
  }
  const Workspace::Scope scope(ctx.workspace);
  auto* table = workspace_array<SummedArray>(ctx, num_arrays);
  cuda_copy_bytes(table, ctx.device, arrays.data(), Device::cpu(),
                  arrays.size() * sizeof(SummedArray), ctx.stream);
  auto* partial = workspace_array<double>(ctx, num_chunks);
  auto* totals = workspace_array<double>(ctx, num_arrays);
  launch(op, square_sums_kernel, num_chunks, kSumThreads, ctx, partial, table,
         static_cast<int>(num_arrays));
  launch(op, join_sums_kernel, num_arrays, kSumThreads, ctx, totals, partial, table);
  cuda_copy_bytes(sums.data(), Device::cpu(), totals, ctx.device, sums.size_bytes(), ctx.stream);
}

void convert_cuda(const Tensor& destination, const Tensor& source, OpContext& ctx) {
  if (destination.dtype() == source.dtype()) {
    copy_tensor(destination, source, ctx.stream);  // bits, so that a NaN keeps its payload
  } else if (destination.dtype() == DType::kBfloat16) {
    convert_elements<__nv_bfloat16, float>(destination, source, ctx);
  } else {
    convert_elements<float, __nv_bfloat16>(destination, source, ctx);
  }
}

void add_into_cuda(const Tensor& y, const Tensor& x, OpContext& ctx) {
  AddInto body{y.data<float>(), x.data<float>(), false};
  body.aligned = is_aligned<kFloatWidth>(body.y) && is_aligned<kFloatWidth>(body.x);
  for_each_group("add_into", body, 1, y.num_elements(), ctx);
}

}  // namespace grpo::ops
