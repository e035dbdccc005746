// Blocked matrix product of the CPU operators: out[m][n] = sum over k, ascending, of a(m, k) b(k,
// n), each element one fp32 fma chain from 0, whatever the sizes and blocks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "model/core/workspace.h"
#include "model/ops/cpu/panel_product.h"

namespace grpo::ops::cpu {

// A matrix in memory; one of the two strides is 1.
template <typename T>
struct StridedMatrix {
  const T* data;
  int64_t row_stride;
  int64_t column_stride;

  const T* at(int64_t row, int64_t column) const {
    return data + row * row_stride + column * column_stride;
  }
};

struct ProductSizes {
  int64_t m;
  int64_t n;
  int64_t k;
};

// Rows of a packed at a time (their packed copy stays in cache) and depth of one packed block of b.
constexpr int64_t kProductRowChunk = 128;
constexpr int64_t kProductDepthBlock = 128;

// Packs rows [0, rows) of `a` for panel_product: groups of up to kMaxPanelRows rows, each [k][rows
// of the group].
template <typename T>
void pack_left(float* packed, const StridedMatrix<T>& a, int64_t first_row, int64_t rows,
               int64_t k) {
  for (int64_t r = 0; r < rows; r += kMaxPanelRows) {
    const int64_t group = std::min<int64_t>(kMaxPanelRows, rows - r);
    const T* source = a.at(first_row + r, 0);
    if (a.column_stride == 1) {
      transpose_block(packed + r * k, group, source, a.row_stride, group, k);
    } else {
      copy_block(packed + r * k, group, source, a.column_stride, k, group);
    }
  }
}

// Packs b[k0 .. k0 + depth)[n0 .. n0 + columns) as [depth][kPanelColumns], zeros beyond columns.
template <typename T>
void pack_right(float* packed, const StridedMatrix<T>& b, int64_t k0, int64_t depth, int64_t n0,
                int64_t columns) {
  if (columns < kPanelColumns) std::fill_n(packed, depth * kPanelColumns, 0.0f);
  if (b.column_stride == 1) {
    copy_block(packed, kPanelColumns, b.at(k0, n0), b.row_stride, depth, columns);
  } else {
    transpose_block(packed, kPanelColumns, b.at(k0, n0), b.column_stride, columns, depth);
  }
}

// store(m, n0, columns, sums) receives each row's finished sums, a panel of columns at a time.
template <typename TA, typename TB, typename Store>
void matrix_product(const ProductSizes& sizes, const StridedMatrix<TA>& a,
                    const StridedMatrix<TB>& b, Workspace& workspace, Store&& store) {
  const Workspace::Scope scope(workspace);
  const int64_t chunk = std::min(sizes.m, kProductRowChunk);
  float* packed_a = workspace.take(DType::kFloat32, {chunk * sizes.k}).template data<float>();
  float* packed_b =
      workspace.take(DType::kFloat32, {kProductDepthBlock * kPanelColumns}).template data<float>();
  float* sums = workspace.take(DType::kFloat32, {chunk * kPanelColumns}).template data<float>();
  if (workspace.allocator().device().is_rehearsal) return;
  for (int64_t m0 = 0; m0 < sizes.m; m0 += chunk) {
    const int64_t rows = std::min(chunk, sizes.m - m0);
    pack_left(packed_a, a, m0, rows, sizes.k);
    for (int64_t n0 = 0; n0 < sizes.n; n0 += kPanelColumns) {
      const int64_t columns = std::min<int64_t>(kPanelColumns, sizes.n - n0);
      std::fill_n(sums, rows * kPanelColumns, 0.0f);
      for (int64_t k0 = 0; k0 < sizes.k; k0 += kProductDepthBlock) {
        const int64_t depth = std::min(kProductDepthBlock, sizes.k - k0);
        pack_right(packed_b, b, k0, depth, n0, columns);
        for (int64_t r = 0; r < rows; r += kMaxPanelRows) {
          const int64_t group = std::min<int64_t>(kMaxPanelRows, rows - r);
          panel_product(static_cast<int>(group), sums + r * kPanelColumns, kPanelColumns,
                        packed_a + r * sizes.k + k0 * group, group, packed_b, kPanelColumns, depth);
        }
      }
      for (int64_t r = 0; r < rows; ++r) store(m0 + r, n0, columns, sums + r * kPanelColumns);
    }
  }
}

}  // namespace grpo::ops::cpu
