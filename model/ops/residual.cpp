#include "model/ops/residual.h"

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

void residual_add(const Tensor& out, const Tensor& a, const Tensor& b, OpContext& ctx) {
  const char* op = "residual_add";
  const OperandChecks checks(op, ctx);
  checks.expect_activation("out", out);
  checks.expect("a", a, out.dtype(), out.shape());
  checks.expect("b", b, out.dtype(), out.shape());
  dispatch(
      op, out.dtype(), ctx, [&]<typename A>(A) { cpu::residual_add<A>(out, a, b); },
      [&] { cuda::residual_add(out, a, b, ctx); });
}

}  // namespace grpo::ops
