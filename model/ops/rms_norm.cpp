#include "model/ops/rms_norm.h"

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

void rms_norm_forward(const Tensor& out, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                      float epsilon, OpContext& ctx) {
  const char* op = "rms_norm_forward";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("x", x, 2);
  checks.expect_activation("x", x);
  checks.expect("out", out, x.dtype(), x.shape());
  checks.expect("weight", weight, x.dtype(), {x.size(1)});
  checks.expect_if_present("rstd", rstd, DType::kFloat32, {x.size(0)});
  dispatch(
      op, x.dtype(), ctx,
      [&]<typename A>(A) { cpu::rms_norm_forward<A>(out, rstd, x, weight, epsilon); },
      [&] { cuda::rms_norm_forward(out, rstd, x, weight, epsilon, ctx); });
}

void residual_rms_norm_forward(const NormedSum& out, const Tensor& x, const Tensor& addend,
                               const Tensor& weight, float epsilon, OpContext& ctx) {
  const char* op = "residual_rms_norm_forward";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("x", x, 2);
  checks.expect_activation("x", x);
  checks.expect("addend", addend, x.dtype(), x.shape());
  checks.expect("sum", out.sum, x.dtype(), x.shape());
  checks.expect("normed", out.normed, x.dtype(), x.shape());
  checks.expect("weight", weight, x.dtype(), {x.size(1)});
  checks.expect_if_present("rstd", out.rstd, DType::kFloat32, {x.size(0)});
  dispatch(
      op, x.dtype(), ctx,
      [&]<typename A>(A) { cpu::residual_rms_norm_forward<A>(out, x, addend, weight, epsilon); },
      [&] { cuda::residual_rms_norm_forward(out, x, addend, weight, epsilon, ctx); });
}

void rms_norm_backward(const RmsNormGradients& gradients, const Tensor& dout, const Tensor& x,
                       const Tensor& weight, const Tensor& rstd, OpContext& ctx) {
  const char* op = "rms_norm_backward";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("x", x, 2);
  checks.expect_activation("x", x);
  checks.expect("dx", gradients.dx, x.dtype(), x.shape());
  checks.expect("dweight", gradients.dweight, DType::kFloat32, {x.size(1)});
  checks.expect("dout", dout, x.dtype(), x.shape());
  checks.expect("weight", weight, x.dtype(), {x.size(1)});
  checks.expect("rstd", rstd, DType::kFloat32, {x.size(0)});
  dispatch(
      op, x.dtype(), ctx,
      [&]<typename A>(A) { cpu::rms_norm_backward<A>(gradients, dout, x, weight, rstd); },
      [&] { cuda::rms_norm_backward(gradients, dout, x, weight, rstd, ctx); });
}

}  // namespace grpo::ops
