// N elements.
#include <array>
#include <bit>
#include <vector>

#include "model/core/device_cuda.h"
#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/workspace_array.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kReduceThreads = 256;
constexpr int kFloatWidth = kGroupWidth<float>;
constexpr int kGroupsPerThread = 16;
constexpr int64_t kElementsPerChunk = int64_t{kReduceThreads} * kGroupsPerThread * kFloatWidth;

// One of several arrays, which are cut into chunks, numbered from the first array's on.
struct ReducedArray {
  const float* x;
  int64_t size;
  int64_t first_chunk;
  bool aligned;
};

// The array that a chunk belongs to: the last that does not start behind it and has any.
__device__ inline int array_of_chunk(const ReducedArray* arrays, int num_arrays, int64_t chunk) {
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

// Calls take(element) for every element of a chunk that this thread owns: groups i,
// i + kReduceThreads, ... of thread i.
template <typename Take>
__device__ inline void for_each_element(const ReducedArray& array, int64_t chunk, Take take) {
  const int64_t begin = (chunk - array.first_chunk) * kElementsPerChunk;
#pragma unroll 4
  for (int group = 0; group < kGroupsPerThread; ++group) {
    const int64_t first = begin + (int64_t{group} * kReduceThreads + threadIdx.x) * kFloatWidth;
    if (first >= array.size) break;
    const int64_t left = array.size - first;
    float values[kFloatWidth];
    load_group(values, array.x + first, left < kFloatWidth ? static_cast<int>(left) : kFloatWidth,
               array.aligned);
#pragma unroll
    for (int i = 0; i < kFloatWidth; ++i) take(values[i]);
  }
}

// Block b looks at chunk b. Bits of magnitudes are ordered as the magnitudes are, NaNs above
// infinity.
__global__ void __launch_bounds__(kReduceThreads)
    largest_magnitudes_kernel(uint32_t* largest /* [arrays], bits */, const ReducedArray* arrays,
                              int num_arrays) {
  const int index = array_of_chunk(arrays, num_arrays, blockIdx.x);
  uint32_t own = 0;
  for_each_element(arrays[index], blockIdx.x,
                   [&](float x) { own = max(own, __float_as_uint(x) & 0x7fffffffu); });
  own = __reduce_max_sync(0xffffffffu, own);
  if (threadIdx.x % 32 == 0) atomicMax(largest + index, own);
}

constexpr int kNumLimbs = 4;  // of 32 bits
static_assert(kGroupsPerThread * kFloatWidth <= kMaxSquaresInDouble);

// Integer sums have no order. Limbs are summed apart, modulo 2^128; carries come last.
__global__ void __launch_bounds__(kReduceThreads)
    square_sum_kernel(unsigned long long* limbs /* [kNumLimbs] */, const ReducedArray* arrays,
                      int num_arrays, SquareGrid grid) {
  __shared__ unsigned long long warp_limbs[kReduceThreads / 32][kNumLimbs];
  const int index = array_of_chunk(arrays, num_arrays, blockIdx.x);
  SquareParts sums{0.0, 0.0};
  for_each_element(arrays[index], blockIdx.x, [&](float x) {
    const SquareParts parts = grid.split(x);
    sums.high = __dadd_rn(sums.high, parts.high);
    sums.low = __dadd_rn(sums.low, parts.low);
  });
  const FixedPoint units = grid.units(sums);
#pragma unroll
  for (int limb = 0; limb < kNumLimbs; ++limb) {
    auto sum = static_cast<unsigned long long>(units >> (32 * limb)) & 0xffffffffu;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    if (threadIdx.x % 32 == 0) warp_limbs[threadIdx.x / 32][limb] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= kNumLimbs) return;
  unsigned long long sum = 0;
  for (const auto& of_warp : warp_limbs) sum += of_warp[threadIdx.x];
  atomicAdd(limbs + threadIdx.x, sum);
}

// The arrays' table in device memory, and how many chunks they have together.
struct ReducedArrays {
  const ReducedArray* table;
  int count;
  int64_t num_chunks;
};

ReducedArrays upload_arrays(std::span<const Tensor> xs, OpContext& ctx) {
  std::vector<ReducedArray> arrays;
  int64_t num_chunks = 0;
  for (const Tensor& x : xs) {
    const auto* data = x.data<float>();
    arrays.push_back({data, x.num_elements(), num_chunks, is_aligned<kFloatWidth>(data)});
    num_chunks += ceil_div(x.num_elements(), kElementsPerChunk);
  }
  auto* table = workspace_array<ReducedArray>(ctx, static_cast<int64_t>(arrays.size()));
  cuda_copy_bytes(table, ctx.device, arrays.data(), Device::cpu(),
                  arrays.size() * sizeof(ReducedArray), ctx.stream);
  return {table, static_cast<int>(arrays.size()), num_chunks};
}

// Runs a kernel over all chunks into `totals`, which start at zero.
template <typename Total, typename Kernel, typename... Arguments>
void reduce_chunks(const char* op, Kernel kernel, std::span<Total> totals,
                   std::span<const Tensor> xs, OpContext& ctx, Arguments... arguments) {
  const Workspace::Scope scope(ctx.workspace);
  const ReducedArrays arrays = upload_arrays(xs, ctx);
  const auto count = static_cast<int64_t>(totals.size());
  const Tensor bytes =
      ctx.workspace.take(DType::kUint8, {static_cast<int64_t>(totals.size_bytes())});
  fill_zero(bytes, ctx.stream);
  auto* device_totals = static_cast<Total*>(bytes.raw());
  launch(op, kernel, arrays.num_chunks, kReduceThreads, ctx, device_totals, arrays.table,
         arrays.count, arguments...);
  cuda_copy_bytes(totals.data(), Device::cpu(), device_totals, ctx.device, totals.size_bytes(),
                  ctx.stream);
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

void largest_magnitudes(std::span<float> largest, std::span<const Tensor> xs, OpContext& ctx) {
  if (xs.empty()) return;
  std::vector<uint32_t> bits(largest.size());
  reduce_chunks("largest_magnitudes", largest_magnitudes_kernel, std::span(bits), xs, ctx);
  for (size_t i = 0; i < bits.size(); ++i) largest[i] = std::bit_cast<float>(bits[i]);
}

FixedPoint square_sum(std::span<const Tensor> xs, const SquareGrid& grid, OpContext& ctx) {
  if (xs.empty()) return 0;
  std::array<unsigned long long, kNumLimbs> limbs;
  reduce_chunks("square_sum", square_sum_kernel, std::span<unsigned long long>(limbs), xs, ctx,
                grid);
  __extension__ unsigned __int128 units = 0;
  for (size_t limb = 0; limb < limbs.size(); ++limb) {
    units += static_cast<unsigned __int128>(limbs[limb]) << (32 * limb);
  }
  return static_cast<FixedPoint>(units);
}

void convert(const Tensor& destination, const Tensor& source, OpContext& ctx) {
  if (destination.dtype() == source.dtype()) {
    copy_tensor(destination, source, ctx.stream);  // bits, so that a NaN keeps its payload
  } else if (destination.dtype() == DType::kBfloat16) {
    convert_elements<__nv_bfloat16, float>(destination, source, ctx);
  } else {
    convert_elements<float, __nv_bfloat16>(destination, source, ctx);
  }
}

void add_into(const Tensor& y, const Tensor& x, OpContext& ctx) {
  AddInto body{y.data<float>(), x.data<float>(), false};
  body.aligned = is_aligned<kFloatWidth>(body.y) && is_aligned<kFloatWidth>(body.x);
  for_each_group("add_into", body, 1, y.num_elements(), ctx);
}

}  // namespace grpo::ops::cuda
