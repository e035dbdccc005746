#include "model/ops/linear.h"

#include <algorithm>

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

namespace {

// Calls cpu(A{}, G{}) for activations A and a product or its gradient G, which is A or float32, or
// cuda().
template <typename CpuFunction, typename CudaFunction>
void dispatch_linear(const char* op, DType activation, DType product, const OpContext& ctx,
                     CpuFunction&& cpu, CudaFunction&& cuda) {
  dispatch<Scratch::kTakes>(
      op, activation, ctx,
      [&]<typename A>(A) {
        if (product == DType::kFloat32) return cpu(A{}, float{});
        cpu(A{}, A{});
      },
      std::forward<CudaFunction>(cuda));
}

constexpr int64_t kProbeRows = 5;  // distinct; a prime, so that each comes to all places of a tile

// A product's dtype is the activations' or float32.
void check_product(const OperandChecks& checks, const char* operand, const Tensor& product,
                   DType activation, const Shape& shape) {
  checks.expect(operand, product, product.dtype() == DType::kFloat32 ? DType::kFloat32 : activation,
                shape);
}

}  // namespace

void linear_forward(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    OpContext& ctx) {
  const char* op = "linear_forward";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("x", x, 2);
  checks.expect_activation("x", x);
  checks.expect_rank("weight", weight, 2);
  checks.expect("weight", weight, x.dtype(), {weight.size(0), x.size(1)});
  checks.expect_if_present("bias", bias, x.dtype(), {weight.size(0)});
  check_product(checks, "out", out, x.dtype(), {x.size(0), weight.size(0)});
  dispatch_linear(
      op, x.dtype(), out.dtype(), ctx,
      [&]<typename A, typename Out>(A, Out) {
        cpu::linear_forward<A, Out>(out, x, weight, bias, ctx);
      },
      [&] { cuda::linear_forward(out, x, weight, bias, ctx); });
}

void linear_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& weight,
                           bool accumulate, OpContext& ctx) {
  const char* op = "linear_backward_input";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("dx", dx, 2);
  checks.expect_activation("dx", dx);
  checks.expect_rank("weight", weight, 2);
  checks.expect("weight", weight, dx.dtype(), {weight.size(0), dx.size(1)});
  check_product(checks, "dout", dout, dx.dtype(), {dx.size(0), weight.size(0)});
  dispatch_linear(
      op, dx.dtype(), dout.dtype(), ctx,
      [&]<typename A, typename G>(A, G) {
        cpu::linear_backward_input<A, G>(dx, dout, weight, accumulate, ctx);
      },
      [&] { cuda::linear_backward_input(dx, dout, weight, accumulate, ctx); });
}

void linear_backward_weight(const Tensor& dweight, const Tensor& dout, const Tensor& x,
                            bool accumulate, OpContext& ctx) {
  const char* op = "linear_backward_weight";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("x", x, 2);
  checks.expect_activation("x", x);
  checks.expect_rank("dout", dout, 2);
  check_product(checks, "dout", dout, x.dtype(), {x.size(0), dout.size(1)});
  checks.expect("dweight", dweight, DType::kFloat32, {dout.size(1), x.size(1)});
  dispatch_linear(
      op, x.dtype(), dout.dtype(), ctx,
      [&]<typename A, typename G>(A, G) {
        cpu::linear_backward_weight<A, G>(dweight, dout, x, accumulate, ctx);
      },
      [&] { cuda::linear_backward_weight(dweight, dout, x, accumulate, ctx); });
}

void linear_backward_bias(const Tensor& dbias, const Tensor& dout, bool accumulate,
                          OpContext& ctx) {
  const char* op = "linear_backward_bias";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("dout", dout, 2);
  checks.expect_activation("dout", dout);
  checks.expect("dbias", dbias, DType::kFloat32, {dout.size(1)});
  dispatch(
      op, dout.dtype(), ctx,
      [&]<typename G>(G) { cpu::linear_backward_bias<G>(dbias, dout, accumulate); },
      [&] { cuda::linear_backward_bias(dbias, dout, accumulate, ctx); });
}

void check_linear_exactness(const Tensor& weight, const Tensor& bias, DType product,
                            int64_t max_rows, OpContext& ctx) {
  const OperandChecks checks("check_linear_exactness", ctx);
  checks.expect_rank("weight", weight, 2);
  checks.expect_activation("weight", weight);
  checks.expect_if_present("bias", bias, weight.dtype(), {weight.size(0)});
  CHECK(product == DType::kFloat32 || product == weight.dtype());
  if (ctx.device.kind == DeviceKind::kCpu) return;
  const Workspace::Scope scope(ctx.workspace);
  const int64_t most = std::max(max_rows, kProbeRows);
  const cuda::LinearProbe probe{.x = ctx.workspace.take(weight.dtype(), {most, weight.size(1)}),
                                .wanted = ctx.workspace.take(product, {kProbeRows, weight.size(0)}),
                                .out = ctx.workspace.take(product, {most, weight.size(0)})};
  dispatch_device(
      ctx, [] {}, [&] { cuda::check_linear_exactness(probe, weight, bias, ctx); });
}

}  // namespace grpo::ops
