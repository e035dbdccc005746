// Blocks of rows' parts; integer sums, so that no order of the atomic additions shows.
#include "model/ops/region_cuda.h"

#include "model/ops/element_groups_cuda.cuh"

namespace grpo::ops {

namespace {

constexpr int kThreads = 128;
constexpr int kWidth = 8;  // elements a thread takes of a row
constexpr int kRowsPerBlock = 8;
constexpr int64_t kColumnsPerBlock = int64_t{kThreads} * kWidth;

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

// A matrix of rows is cut into blocks of kRowsPerBlock rows and kColumnsPerBlock columns.
struct BlockGrid {
  int64_t num_rows;
  int64_t num_cols;
  unsigned blocks_per_row;

  explicit BlockGrid(const Region& region)
      : num_rows(region.num_rows),
        num_cols(region.num_cols),
        blocks_per_row(static_cast<unsigned>(ceil_div(region.num_cols, kColumnsPerBlock))) {}
  int64_t num_blocks() const { return ceil_div(num_rows, kRowsPerBlock) * blocks_per_row; }

  // Calls body(row, first column, count) for this thread's groups.
  template <typename Body>
  __device__ void for_own_groups(const Body& body) const {
    const int64_t begin = blockIdx.x / blocks_per_row * int64_t{kRowsPerBlock};
    const int64_t first =
        blockIdx.x % blocks_per_row * kColumnsPerBlock + static_cast<int64_t>(threadIdx.x) * kWidth;
    if (first >= num_cols) return;
    const int64_t left = num_cols - first;
    const int count = left < kWidth ? static_cast<int>(left) : kWidth;
#pragma unroll 4
    for (int r = 0; r < kRowsPerBlock; ++r) {
      if (begin + r < num_rows) body(begin + r, first, count);
    }
  }
};

template <typename To, typename From>
__global__ void __launch_bounds__(kThreads)
    copy_region_kernel(DeviceRegion<To> to, DeviceRegion<From> from, BlockGrid grid, bool aligned,
                       unsigned long long* num_changed) {
  unsigned long long changed = 0;
  grid.for_own_groups([&](int64_t row, int64_t first, int count) {
    To* place = to.data + row * to.stride + first;
    const auto source = load_packet<kWidth>(from.data + row * from.stride + first, count, aligned);
    Packet<To, kWidth> value = load_packet<kWidth>(place, count, aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const To before = value.elements[i];
      value.elements[i] = as<To>(source.elements[i]);
      changed += i < count && bits_of(before) != bits_of(value.elements[i]) ? 1 : 0;
    }
    store_packet<kWidth>(place, value, count, aligned);
  });
  if (num_changed != nullptr) add_block_sum(num_changed, changed);
}

template <typename As, typename From>
__global__ void __launch_bounds__(kThreads)
    fingerprint_kernel(unsigned long long* total, DeviceRegion<From> from, LogicalPlace place,
                       BlockGrid grid, bool aligned) {
  constexpr uint64_t kColumnFactor = 0x9E3779B97F4A7C15ull;
  unsigned long long sum = 0;
  grid.for_own_groups([&](int64_t row, int64_t first, int count) {
    const auto values = load_packet<kWidth>(from.data + row * from.stride + first, count, aligned);
    const uint64_t row_key =
        mix_bits_device(place.tensor_key + static_cast<uint64_t>(place.row + row));
    uint64_t column_key = static_cast<uint64_t>(place.col + first) * kColumnFactor;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const uint64_t bits = bits_of(as<As>(values.elements[i]));
      if (i < count) sum += mix_bits_device(row_key ^ (column_key + bits));
      column_key += kColumnFactor;
    }
  });
  add_block_sum(total, sum);
}

// Whether every group of every row can be accessed as a packet.
template <typename D>
bool has_aligned_groups(const DeviceRegion<D>& region) {
  return is_aligned<kWidth>(region.data) && region.stride % kWidth == 0;
}

unsigned long long* counter(const Tensor& tensor) {
  return tensor.is_absent() ? nullptr : static_cast<unsigned long long*>(tensor.raw());
}

}  // namespace

void copy_region_cuda(const Region& destination, const Region& source, const Tensor& num_changed,
                      OpContext& ctx) {
  const char* op = "copy_region";
  if (source.num_rows == 0 || source.num_cols == 0) return;
  const BlockGrid grid(source);
  dispatch_device_type(op, destination.matrix.dtype(), [&]<typename To>(To) {
    dispatch_device_type(op, source.matrix.dtype(), [&]<typename From>(From) {
      const auto to = device_region<To>(destination);
      const auto from = device_region<From>(source);
      launch(op, copy_region_kernel<To, From>, grid.num_blocks(), kThreads, ctx, to, from, grid,
             has_aligned_groups(to) && has_aligned_groups(from), counter(num_changed));
    });
  });
}

void add_fingerprint_cuda(const Tensor& sum, const Region& region, const LogicalPlace& place,
                          DType dtype, OpContext& ctx) {
  const char* op = "add_fingerprint";
  if (region.num_rows == 0 || region.num_cols == 0) return;
  const BlockGrid grid(region);
  dispatch_device_type(op, dtype, [&]<typename As>(As) {
    dispatch_device_type(op, region.matrix.dtype(), [&]<typename From>(From) {
      const auto from = device_region<From>(region);
      launch(op, fingerprint_kernel<As, From>, grid.num_blocks(), kThreads, ctx, counter(sum), from,
             place, grid, has_aligned_groups(from));
    });
  });
}

}  // namespace grpo::ops
