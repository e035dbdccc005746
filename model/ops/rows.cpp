#include "model/ops/rows.h"

namespace grpo::ops {

namespace {

void check_rows(const Tensor& picked, const Tensor& all, const Tensor& indices,
                const OpContext& ctx) {
  CHECK(picked.rank() == 2 && all.rank() == 2 && picked.size(1) == all.size(1) &&
            picked.dtype() == all.dtype(),
        "rows {} of {}", picked.shape().to_string(), all.shape().to_string());
  CHECK(indices.rank() == 1 && indices.size(0) == picked.size(0) &&
            indices.dtype() == DType::kInt32,
        "{} indices of {} rows", indices.shape().to_string(), picked.shape().to_string());
  CHECK(ctx.device.kind == DeviceKind::kCpu, "rows on {}", device_name(ctx.device));
  const int32_t* index = indices.data<int32_t>();
  for (int64_t i = 0; i < indices.size(0); ++i) {
    CHECK(index[i] >= 0 && index[i] < all.size(0), "row {} of {}", index[i], all.size(0));
  }
}

}  // namespace

void gather_rows(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext& ctx) {
  check_rows(out, x, indices, ctx);
  const int32_t* index = indices.data<int32_t>();
  for (int64_t i = 0; i < out.size(0); ++i) copy_tensor(out.rows(i, 1), x.rows(index[i], 1));
}

void scatter_rows(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext& ctx) {
  check_rows(x, out, indices, ctx);
  fill_zero(out);
  const int32_t* index = indices.data<int32_t>();
  for (int64_t i = 0; i < x.size(0); ++i) copy_tensor(out.rows(index[i], 1), x.rows(i, 1));
}

}  // namespace grpo::ops
