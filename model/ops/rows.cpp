#include "model/ops/rows.h"

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

namespace {

// `picked` rows of `all`, one an index.
void check_rows(const OperandChecks& checks, const Tensor& picked, const Tensor& all,
                const Tensor& indices) {
  checks.expect_rank("all rows", all, 2);
  checks.expect_activation("all rows", all);
  checks.expect_rank("indices", indices, 1);
  checks.expect("indices", indices, DType::kInt32, {indices.size(0)});
  checks.expect("picked rows", picked, all.dtype(), {indices.size(0), all.size(1)});
}

}  // namespace

void gather_rows(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext& ctx) {
  check_rows(OperandChecks("gather_rows", ctx), out, x, indices);
  dispatch_device(
      ctx, [&] { cpu::gather_rows(out, x, indices); },
      [&] { cuda::gather_rows(out, x, indices, ctx); });
}

void scatter_rows(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext& ctx) {
  check_rows(OperandChecks("scatter_rows", ctx), x, out, indices);
  dispatch_device(
      ctx, [&] { cpu::scatter_rows(out, x, indices); },
      [&] { cuda::scatter_rows(out, x, indices, ctx); });
}

}  // namespace grpo::ops
