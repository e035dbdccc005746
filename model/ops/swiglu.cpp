#include "model/ops/swiglu.h"

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

void swiglu_forward(const Tensor& out, const Tensor& gate_up, OpContext& ctx) {
  const char* op = "swiglu_forward";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("out", out, 2);
  checks.expect_activation("out", out);
  checks.expect("gate_up", gate_up, out.dtype(), {out.size(0), 2 * out.size(1)});
  dispatch(
      op, out.dtype(), ctx, [&]<typename A>(A) { cpu::swiglu_forward<A>(out, gate_up); },
      [&] { cuda::swiglu_forward(out, gate_up, ctx); });
}

void swiglu_backward(const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up,
                     OpContext& ctx) {
  const char* op = "swiglu_backward";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("dout", dout, 2);
  checks.expect_activation("dout", dout);
  checks.expect("gate_up", gate_up, dout.dtype(), {dout.size(0), 2 * dout.size(1)});
  checks.expect("dgate_up", dgate_up, dout.dtype(), gate_up.shape());
  dispatch(
      op, dout.dtype(), ctx,
      [&]<typename A>(A) { cpu::swiglu_backward<A>(dgate_up, dout, gate_up); },
      [&] { cuda::swiglu_backward(dgate_up, dout, gate_up, ctx); });
}

}  // namespace grpo::ops
