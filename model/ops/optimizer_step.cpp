#include "model/ops/optimizer_step.h"

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

void adamw_step(const AdamWState& state, const Tensor& weight, const Tensor& gradient,
                const AdamWScalars& scalars, OpContext& ctx) {
  const char* op = "adamw_step";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("master", state.master, 1);
  const Shape shape = state.master.shape();
  checks.expect("master", state.master, DType::kFloat32, shape);
  checks.expect("m", state.m, DType::kFloat32, shape);
  checks.expect("v", state.v, DType::kFloat32, shape);
  checks.expect_activation("weight", weight);
  checks.expect("weight", weight, weight.dtype(), shape);
  checks.expect("gradient", gradient, DType::kFloat32, shape);
  CHECK(scalars.step >= 1, "{}: step {} is not 1-based", op, scalars.step);
  dispatch(
      op, weight.dtype(), ctx,
      [&]<typename W>(W) { cpu::adamw_step<W>(state, weight, gradient, scalars); },
      [&] { cuda::adamw_step(state, weight, gradient, scalars, ctx); });
}

void sgd_step(const Tensor& master, const Tensor& weight, const Tensor& gradient,
              const SgdScalars& scalars, OpContext& ctx) {
  const char* op = "sgd_step";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("master", master, 1);
  checks.expect("master", master, DType::kFloat32, master.shape());
  checks.expect_activation("weight", weight);
  checks.expect("weight", weight, weight.dtype(), master.shape());
  checks.expect("gradient", gradient, DType::kFloat32, master.shape());
  dispatch(
      op, weight.dtype(), ctx,
      [&]<typename W>(W) { cpu::sgd_step<W>(master, weight, gradient, scalars); },
      [&] { cuda::sgd_step(master, weight, gradient, scalars, ctx); });
}

}  // namespace grpo::ops
