// Blocks of rows' parts; integer sums, so that no order of the atomic additions shows.
#include "model/ops/region_cuda.h"

#include "model/ops/element_groups_cuda.cuh"

namespace grpo::ops {

namespace {

constexpr int kThreads = 256;
constexpr int kElementsPerThread = 8;
constexpr int64_t kElementsPerBlock = int64_t{kThreads} * kElementsPerThread;

// A region whose first element is `data`.
template <typename D>
struct DeviceRegion {
  D* data;
  int64_t stride;
};

template <typename D>
DeviceRegion<D> device_region(const Region& region) {
  const int64_t stride = region.matrix.size(1);
  return {device_data<D>(region.matrix) + region.row * stride + region.col, stride};
}

__device__ inline uint32_t bits_of(float value) { return __float_as_uint(value); }
__device__ inline uint32_t bits_of(__nv_bfloat16 value) { return __bfloat16_as_ushort(value); }

template <typename To, typename From>
__device__ inline To as(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else {
    return from_float<To>(to_float(value));
  }
}

// counter_rng.h's, on the device.
__device__ inline uint64_t mix_bits_device(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

// Adds the block's sum of `value` to *total; every thread of the block calls it.
__device__ inline void add_block_sum(unsigned long long* total, unsigned long long value) {
  __shared__ unsigned long long sums[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) value += sums[warp];
  if (value != 0) atomicAdd(total, value);
}

// Calls body(row, col) for this thread's elements of the block's part of a row.
template <typename Body>
__device__ inline void for_own_elements(int64_t num_cols, unsigned blocks_per_row,
                                        const Body& body) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t first = (blockIdx.x % blocks_per_row) * kElementsPerBlock + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kElementsPerThread; ++i) {
    const int64_t col = first + int64_t{i} * kThreads;
    if (col < num_cols) body(row, col);
  }
}

template <typename To, typename From>
__global__ void __launch_bounds__(kThreads)
    copy_region_kernel(DeviceRegion<To> to, DeviceRegion<From> from, int64_t num_cols,
                       unsigned blocks_per_row, unsigned long long* num_changed) {
  unsigned long long count = 0;
  for_own_elements(num_cols, blocks_per_row, [&](int64_t row, int64_t col) {
    const To value = as<To>(from.data[row * from.stride + col]);
    To& place = to.data[row * to.stride + col];
    count += bits_of(place) != bits_of(value) ? 1 : 0;
    place = value;
  });
  if (num_changed != nullptr) add_block_sum(num_changed, count);
}

template <typename As, typename From>
__global__ void __launch_bounds__(kThreads)
    fingerprint_kernel(unsigned long long* total, DeviceRegion<From> from, LogicalPlace place,
                       int64_t num_cols, unsigned blocks_per_row) {
  unsigned long long sum = 0;
  for_own_elements(num_cols, blocks_per_row, [&](int64_t row, int64_t col) {
    const uint64_t row_key =
        mix_bits_device(place.tensor_key + static_cast<uint64_t>(place.row + row));
    const auto column = static_cast<uint64_t>(place.col + col);
    const uint64_t bits = bits_of(as<As>(from.data[row * from.stride + col]));
    sum += mix_bits_device(row_key ^ (column * 0x9E3779B97F4A7C15ull + bits));
  });
  add_block_sum(total, sum);
}

unsigned long long* counter(const Tensor& tensor) {
  return tensor.is_absent() ? nullptr : static_cast<unsigned long long*>(tensor.raw());
}

}  // namespace

void copy_region_cuda(const Region& destination, const Region& source, const Tensor& num_changed,
                      OpContext& ctx) {
  const char* op = "copy_region";
  const int64_t blocks_per_row = ceil_div(source.num_cols, kElementsPerBlock);
  dispatch_device_type(op, destination.matrix.dtype(), [&]<typename To>(To) {
    dispatch_device_type(op, source.matrix.dtype(), [&]<typename From>(From) {
      launch(op, copy_region_kernel<To, From>, source.num_rows * blocks_per_row, kThreads, ctx,
             device_region<To>(destination), device_region<From>(source), source.num_cols,
             static_cast<unsigned>(blocks_per_row), counter(num_changed));
    });
  });
}

void add_fingerprint_cuda(const Tensor& sum, const Region& region, const LogicalPlace& place,
                          DType dtype, OpContext& ctx) {
  const char* op = "add_fingerprint";
  const int64_t blocks_per_row = ceil_div(region.num_cols, kElementsPerBlock);
  dispatch_device_type(op, dtype, [&]<typename As>(As) {
    dispatch_device_type(op, region.matrix.dtype(), [&]<typename From>(From) {
      launch(op, fingerprint_kernel<As, From>, region.num_rows * blocks_per_row, kThreads, ctx,
             counter(sum), device_region<From>(region), place, region.num_cols,
             static_cast<unsigned>(blocks_per_row));
    });
  });
}

}  // namespace grpo::ops
