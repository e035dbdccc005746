// The widest float vector of the target, with an explicit fused multiply-add, and 8x8 transposes.
// Vector width never changes a result: lanes hold independent elements, or a fixed number of
// partial sums.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "model/core/dtype.h"

namespace grpo::ops::cpu {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kVectorFloats = kVectorBytes / 4;

typedef float FloatVector __attribute__((vector_size(kVectorBytes)));

inline FloatVector load_vector(const float* source) {
  FloatVector value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

inline void store_vector(float* destination, FloatVector value) {
  std::memcpy(destination, &value, sizeof(value));
}

inline FloatVector broadcast(float value) { return value - FloatVector{}; }

// a * b + c with one rounding in each lane. The compiler does not vectorise a loop of std::fma over
// the lanes of a vector type, hence the intrinsics where they exist; all branches give the same
// bits.
inline FloatVector fused_multiply_add(FloatVector a, FloatVector b, FloatVector c) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatVector>(_mm512_fmadd_ps(
      reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__AVX__) && defined(__FMA__)
  return reinterpret_cast<FloatVector>(_mm256_fmadd_ps(
      reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#else
  FloatVector result;
  for (int lane = 0; lane < kVectorFloats; ++lane) {
    result[lane] = std::fma(a[lane], b[lane], c[lane]);
  }
  return result;
#endif
}

// Passed by reference only: 32-byte values have no stable calling convention on targets without
// AVX.
typedef float Float8 __attribute__((vector_size(32)));

inline void load8(Float8& value, const float* source) {
  std::memcpy(&value, source, sizeof(value));
}

inline void load8(Float8& value, const Bfloat16* source) {
  typedef uint16_t Half8 __attribute__((vector_size(16)));
  typedef uint32_t Word8 __attribute__((vector_size(32)));
  Half8 bits;
  std::memcpy(&bits, source, sizeof(bits));
  const Word8 words = __builtin_convertvector(bits, Word8) << 16;
  std::memcpy(&value, &words, sizeof(value));
}

// rows[r][c] becomes rows[c][r].
inline void transpose8(Float8 (&rows)[8]) {
  Float8 pairs[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  Float8 quads[8];
  for (int i = 0; i < 8; i += 4) {
    for (int half = 0; half < 2; ++half) {
      const Float8& low = pairs[i + half];
      const Float8& high = pairs[i + half + 2];
      quads[i + 2 * half] = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
      quads[i + 2 * half + 1] = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = __builtin_shufflevector(quads[i], quads[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    rows[i + 4] = __builtin_shufflevector(quads[i], quads[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

}  // namespace grpo::ops::cpu
