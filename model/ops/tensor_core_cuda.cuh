// Instructions for bfloat16 tiles: copies into shared memory, matrix fragments and their products.
// Compute capability 8.0 on. In a warp, lane = 4 g + t; "pair" is two bfloat16 in 32 bits, the
// first in the low half.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace grpo::ops {

// Copies 16 bytes in the background, or zeros if not valid (source must still be an address).
__device__ inline void copy_16_bytes(void* shared, const void* source, bool valid) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source),
               "r"(bytes)
               : "memory");
}

// As copy_16_bytes, of one float.
__device__ inline void copy_float(float* shared, const float* source, bool valid) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(source),
               "r"(bytes)
               : "memory");
}

// Closes the group of copies begun since the last one.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for this thread's copies but for the kGroups newest groups.
template <int kGroups>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Four 8x8 matrices whose row addresses lanes 0-7, 8-15, 16-23 and 24-31 give: lane 4 g + t gets
// the pair at columns 2 t of row g of each.
__device__ inline void load_matrices(unsigned (&pairs)[4], const void* row) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
               : "memory");
}

// As load_matrices, of their transposes.
__device__ inline void load_transposed_matrices(unsigned (&pairs)[4], const void* row) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
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

}  // namespace grpo::ops
