// Matrix products in true float32 on CUDA cores: c [m, n] = (c +) sum over k of a(m, k) b(k, n),
// then + bias[n]. Each element is one ascending chain of fused multiply-adds from 0, as on the CPU:
// the same bits as there, for every m.
#pragma once

#include <cstdint>

#include "model/ops/op_context.h"

namespace grpo::ops::cuda {

struct StridedFloats {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

struct FloatProduct {
  int64_t m, n, k;
  StridedFloats a;  // [m, k]
  StridedFloats b;  // [k, n]
  float* c;         // [m, n]
  bool accumulate;
  const float* bias;  // or null
};

void float_product(const char* op, const FloatProduct& product, const OpContext& ctx);

}  // namespace grpo::ops::cuda
