#include "model/ops/cpu/entry_points.h"

namespace grpo::ops::cpu {

namespace {

// indices[i], which picks one of num_rows rows.
int64_t row_at(const char* op, const Tensor& indices, int64_t i, int64_t num_rows) {
  const int32_t index = indices.data<int32_t>()[i];
  CHECK(index >= 0 && index < num_rows, "{}: index {} at {} is outside [0, {})", op, index, i,
        num_rows);
  return index;
}

}  // namespace

void gather_rows(const Tensor& out, const Tensor& x, const Tensor& indices) {
  for (int64_t i = 0; i < out.size(0); ++i) {
    copy_tensor(out.rows(i, 1), x.rows(row_at("gather_rows", indices, i, x.size(0)), 1));
  }
}

void scatter_rows(const Tensor& out, const Tensor& x, const Tensor& indices) {
  fill_zero(out);
  for (int64_t i = 0; i < x.size(0); ++i) {
    copy_tensor(out.rows(row_at("scatter_rows", indices, i, out.size(0)), 1), x.rows(i, 1));
  }
}

}  // namespace grpo::ops::cpu
