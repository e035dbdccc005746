#include "model/ops/embedding.h"

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

void embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& weight,
                       OpContext& ctx) {
  const char* op = "embedding_forward";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("weight", weight, 2);
  checks.expect_activation("weight", weight);
  checks.expect_rank("tokens", tokens, 1);
  checks.expect("tokens", tokens, DType::kInt32, {tokens.size(0)});
  checks.expect("out", out, weight.dtype(), {tokens.size(0), weight.size(1)});
  dispatch(
      op, weight.dtype(), ctx,
      [&]<typename A>(A) { cpu::embedding_forward<A>(out, tokens, weight); },
      [&] { cuda::gather_rows(out, weight, tokens, ctx); });
}

void embedding_backward(const Tensor& dweight, const Tensor& dout, const Tensor& tokens,
                        bool accumulate, OpContext& ctx) {
  const char* op = "embedding_backward";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("dweight", dweight, 2);
  checks.expect("dweight", dweight, DType::kFloat32, dweight.shape());
  checks.expect_rank("dout", dout, 2);
  checks.expect_activation("dout", dout);
  checks.expect("dout", dout, dout.dtype(), {dout.size(0), dweight.size(1)});
  checks.expect("tokens", tokens, DType::kInt32, {dout.size(0)});
  dispatch<Scratch::kTakes>(
      op, dout.dtype(), ctx,
      [&]<typename A>(A) { cpu::embedding_backward<A>(dweight, dout, tokens, accumulate, ctx); },
      [&] { cuda::embedding_backward(dweight, dout, tokens, accumulate, ctx); });
}

}  // namespace grpo::ops
