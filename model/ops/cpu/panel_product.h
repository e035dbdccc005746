// The inner product of all CPU matrix work: c[r][0..32) += sum over k, ascending, of a[k][r] *
// b[k][0..32). Each element of c is one fp32 fma chain that starts from what c holds, so cutting k
// into blocks or rows into groups changes no bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "model/ops/cpu/vector.h"

namespace grpo::ops::cpu {

constexpr int kPanelColumns = 32;
// Rows whose accumulators fit the register file beside a row of b.
constexpr int kMaxPanelRows = kVectorFloats == 16 ? 8 : 2;

template <int kRows>
inline void panel_product_rows(float* c, int64_t c_stride, const float* a, int64_t a_stride,
                               const float* b, int64_t b_stride, int64_t depth) {
  constexpr int kVectors = kPanelColumns / kVectorFloats;
  FloatVector sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = load_vector(c + r * c_stride + v * kVectorFloats);
  }
  for (int64_t k = 0; k < depth; ++k) {
    FloatVector row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = load_vector(b + k * b_stride + v * kVectorFloats);
    for (int r = 0; r < kRows; ++r) {
      const FloatVector factor = broadcast(a[k * a_stride + r]);
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] = fused_multiply_add(factor, row[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      store_vector(c + r * c_stride + v * kVectorFloats, sums[r][v]);
  }
}

// Any number of rows. c: [rows][c_stride], a: [depth][a_stride], b: [depth][b_stride].
inline void panel_product(int rows, float* c, int64_t c_stride, const float* a, int64_t a_stride,
                          const float* b, int64_t b_stride, int64_t depth) {
  while (rows > 0) {
    const int group = rows < kMaxPanelRows ? rows : kMaxPanelRows;
    const auto product = [&]<int kRows>() {
      panel_product_rows<kRows>(c, c_stride, a, a_stride, b, b_stride, depth);
    };
    switch (group) {
      case 1:
        product.template operator()<1>();
        break;
      case 2:
        product.template operator()<2>();
        break;
      case 3:
        product.template operator()<3>();
        break;
      case 4:
        product.template operator()<4>();
        break;
      case 5:
        product.template operator()<5>();
        break;
      case 6:
        product.template operator()<6>();
        break;
      case 7:
        product.template operator()<7>();
        break;
      default:
        product.template operator()<8>();
    }
    c += group * c_stride;
    a += group;
    rows -= group;
  }
}

// destination[r * destination_stride + c] = source[r * source_stride + c], as float.
template <typename T>
inline void copy_block(float* destination, int64_t destination_stride, const T* source,
                       int64_t source_stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      destination[r * destination_stride + c] = static_cast<float>(source[r * source_stride + c]);
    }
  }
}

// destination[c * destination_stride + r] = source[r * source_stride + c], as float.
template <typename T>
inline void transpose_block(float* destination, int64_t destination_stride, const T* source,
                            int64_t source_stride, int64_t rows, int64_t columns) {
  const auto scalar = [&](int64_t first_row, int64_t first_column) {
    for (int64_t r = first_row; r < rows; ++r) {
      for (int64_t c = first_column; c < columns; ++c) {
        destination[c * destination_stride + r] = static_cast<float>(source[r * source_stride + c]);
      }
    }
  };
  const int64_t whole_rows = rows / 8 * 8;
  const int64_t whole_columns = columns / 8 * 8;
  for (int64_t r = 0; r < whole_rows; r += 8) {
    for (int64_t c = 0; c < whole_columns; c += 8) {
      Float8 block[8];
      for (int i = 0; i < 8; ++i) load8(block[i], source + (r + i) * source_stride + c);
      transpose8(block);
      for (int i = 0; i < 8; ++i) {
        std::memcpy(destination + (c + i) * destination_stride + r, &block[i], sizeof(Float8));
      }
    }
    for (int64_t c = whole_columns; c < columns; ++c) {
      for (int64_t i = r; i < r + 8; ++i) {
        destination[c * destination_stride + i] = static_cast<float>(source[i * source_stride + c]);
      }
    }
  }
  scalar(whole_rows, 0);
}

}  // namespace grpo::ops::cpu
