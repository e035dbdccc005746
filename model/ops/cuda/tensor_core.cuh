// Instructions for bfloat16 tiles: copies into shared memory, matrix fragments and their products.
// Compute capability 8.0 on. In a warp, lane = 4 g + t; "pair" is two bfloat16 in 32 bits, the
// first in the low half.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace grpo::ops::cuda {

// A place in shared memory, in bytes.
using SharedAddress = unsigned;

__device__ inline SharedAddress shared_address(const void* shared) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(shared));
}

// Copies 16 bytes in the background, or zeros if not valid (source must still be an address).
__device__ inline void copy_16_bytes(SharedAddress shared, const void* source, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(source),
               "r"(bytes)
               : "memory");
}

// As copy_16_bytes, of 8.
__device__ inline void copy_8_bytes(SharedAddress shared, const void* source, bool valid) {
  const int bytes = valid ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(source), "r"(bytes)
               : "memory");
}

// Closes the group of copies begun since the last one.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all of this thread's copies.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ inline void store_shared(SharedAddress shared, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(value) : "memory");
}

__device__ inline uint4 load_shared_16_bytes(SharedAddress shared) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(shared)
               : "memory");
  return value;
}

// Four 8x8 matrices whose row addresses lanes 0-7, 8-15, 16-23 and 24-31 give: lane 4 g + t gets
// the pair at columns 2 t of row g of each.
__device__ inline void load_matrices(unsigned (&pairs)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(row)
               : "memory");
}

// As load_matrices, of their transposes.
__device__ inline void load_transposed_matrices(unsigned (&pairs)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(row)
               : "memory");
}

// sums [16, 8] += a [16, 16] b [16, 8]. Lane 4 g + t holds of a the pairs at (g, 2t), (g + 8, 2t),
// (g, 2t + 8), (g + 8, 2t + 8); of b columns g, rows 2t, 2t + 1 and 2t + 8, 2t + 9; of sums (g,
// 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 2^x, about 2 ulp; exactly 1 at 0, 0 at -infinity.
__device__ inline float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Both rounded to nearest even.
__device__ inline unsigned round_pair(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

}  // namespace grpo::ops::cuda
