// N elements.
#include "model/ops/reduce_cuda.h"

#include "model/core/device_cuda.h"
#include "model/ops/block_sum_cuda.cuh"
#include "model/ops/element_groups_cuda.cuh"

namespace grpo::ops {

namespace {

constexpr int kSumThreads = 256;
constexpr int kFloatWidth = kGroupWidth<float>;
constexpr int kGroupsPerThread = 16;
constexpr int64_t kElementsPerChunk = int64_t{kSumThreads} * kGroupsPerThread * kFloatWidth;

// Block b sums chunk b; thread i owns its groups i, i + kSumThreads, ...
__global__ void __launch_bounds__(kSumThreads)
    square_sums_kernel(double* partial /* [chunks] */, const float* x, int64_t size, bool aligned) {
  __shared__ double scratch[kSumThreads / 32];
  double sum = 0.0;
#pragma unroll 4
  for (int group = 0; group < kGroupsPerThread; ++group) {
    const int64_t first =
        blockIdx.x * kElementsPerChunk + (int64_t{group} * kSumThreads + threadIdx.x) * kFloatWidth;
    if (first >= size) break;
    const int64_t left = size - first;
    float values[kFloatWidth];
    load_group(values, x + first, left < kFloatWidth ? static_cast<int>(left) : kFloatWidth,
               aligned);
#pragma unroll
    for (int i = 0; i < kFloatWidth; ++i) {
      const double value = values[i];
      sum = __fma_rn(value, value, sum);
    }
  }
  sum = block_sum<kSumThreads>(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One block; thread i owns the partial sums i, i + kSumThreads, ...
__global__ void __launch_bounds__(kSumThreads)
    join_sums_kernel(double* total, const double* partial, int64_t count) {
  __shared__ double scratch[kSumThreads / 32];
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) sum = __dadd_rn(sum, partial[i]);
  sum = block_sum<kSumThreads>(sum, scratch);
  if (threadIdx.x == 0) *total = sum;
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

double sum_of_squares_cuda(const Tensor& x, OpContext& ctx) {
  const char* op = "sum_of_squares";
  const float* data = x.data<float>();
  const int64_t size = x.num_elements();
  const int64_t chunks = ceil_div(size, kElementsPerChunk);
  const Workspace::Scope scope(ctx.workspace);
  const auto bytes = static_cast<int64_t>(sizeof(double)) * (chunks + 1);
  auto* sums = static_cast<double*>(ctx.workspace.take(DType::kUint8, {bytes}).raw());
  double* total = sums + chunks;
  launch(op, square_sums_kernel, chunks, kSumThreads, ctx, sums, data, size,
         is_aligned<kFloatWidth>(data));
  launch(op, join_sums_kernel, 1, kSumThreads, ctx, total, sums, chunks);
  double result = 0.0;
  cuda_copy_bytes(&result, Device::cpu(), total, ctx.device, sizeof(result), ctx.stream);
  return result;
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
