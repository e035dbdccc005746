// Elements in device memory, taken as floats in groups of neighbours. A group is one access of 16
// bytes where all operands are aligned for it and single accesses elsewhere; both give the same
// values.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "model/core/dtype.h"
#include "model/ops/cuda/launch.cuh"
#include "model/ops/dispatch.h"

namespace grpo::ops::cuda {

// The device's name for a storage type.
template <typename A>
struct DeviceTypeOf {
  using Type = A;
};
template <>
struct DeviceTypeOf<Bfloat16> {
  using Type = __nv_bfloat16;
};

// Calls function(float{}) or function(__nv_bfloat16{}).
template <typename Function>
void dispatch_device_type(const char* op, DType dtype, Function&& function) {
  dispatch_dtype(op, dtype, [&]<typename A>(A) { function(typename DeviceTypeOf<A>::Type{}); });
}

template <typename D>
D* device_data(const Tensor& tensor) {
  return static_cast<D*>(tensor.raw());
}

// Elements of D in 16 bytes.
template <typename D>
constexpr int kGroupWidth = 16 / static_cast<int>(sizeof(D));

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename D>
__device__ inline D from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// One to two accesses of up to 16 bytes.
template <typename D, int kWidth>
struct alignas(kWidth * sizeof(D) < 16 ? kWidth * sizeof(D) : 16) Packet {
  D elements[kWidth];
};

// Whether groups of kWidth elements that start at multiples of kWidth from here can be accessed as
// packets.
template <int kWidth, typename D>
bool is_aligned(const D* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Packet<D, kWidth>) == 0;
}

// The `count` elements (at most kWidth) at `source`, bits unchanged; the rest is zero. The pointers
// of aligned whole groups are aligned.
template <int kWidth, typename D>
__device__ inline Packet<D, kWidth> load_packet(const D* source, int count, bool aligned) {
  if (aligned && count == kWidth) return *reinterpret_cast<const Packet<D, kWidth>*>(source);
  Packet<D, kWidth> packet;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) packet.elements[i] = i < count ? source[i] : from_float<D>(0.0f);
  return packet;
}

template <int kWidth, typename D>
__device__ inline void store_packet(D* destination, const Packet<D, kWidth>& packet, int count,
                                    bool aligned) {
  if (aligned && count == kWidth) {
    // By intrinsics: the compiler splits plain stores into elements to share them with the loop
    // below.
    using Word = std::conditional_t<sizeof(packet) == sizeof(uint2), uint2, uint4>;
    Word words[sizeof(packet) / sizeof(Word)];
    memcpy(words, &packet, sizeof(packet));
#pragma unroll
    for (size_t i = 0; i < sizeof(packet) / sizeof(Word); ++i) {
      __stwb(reinterpret_cast<Word*>(destination) + i, words[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (i < count) destination[i] = packet.elements[i];
  }
}

template <int kWidth, typename D>
__device__ inline void load_group(float (&values)[kWidth], const D* source, int count,
                                  bool aligned) {
  const Packet<D, kWidth> packet = load_packet<kWidth>(source, count, aligned);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = to_float(packet.elements[i]);
}

// Rounds each value once.
template <int kWidth, typename D>
__device__ inline void store_group(D* destination, const float (&values)[kWidth], int count,
                                   bool aligned) {
  Packet<D, kWidth> packet;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) packet.elements[i] = from_float<D>(values[i]);
  store_packet<kWidth>(destination, packet, count, aligned);
}

// Calls body(row, first, count) for each group of Body::kWidth elements of every row: elements
// [first, first + count) of `row`.
template <typename Body>
__global__ void groups_kernel(Body body, int64_t row_size, unsigned blocks_per_row) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t block = blockIdx.x % blocks_per_row;
  const int64_t first = (block * blockDim.x + threadIdx.x) * Body::kWidth;
  if (first < row_size) {
    const int64_t left = row_size - first;
    body(row, first, left < Body::kWidth ? static_cast<int>(left) : Body::kWidth);
  }
}

template <typename Body>
void for_each_group(const char* op, const Body& body, int64_t num_rows, int64_t row_size,
                    const OpContext& ctx) {
  constexpr int kThreads = 128;
  const int64_t blocks_per_row = ceil_div(row_size, int64_t{kThreads} * Body::kWidth);
  launch(op, groups_kernel<Body>, num_rows * blocks_per_row, kThreads, ctx, body, row_size,
         static_cast<unsigned>(blocks_per_row));
}

}  // namespace grpo::ops::cuda
