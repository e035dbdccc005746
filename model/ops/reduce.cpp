#include "model/ops/reduce.h"

#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"
#include "model/ops/reduce_cpu.h"
#include "model/ops/reduce_cuda.h"

namespace grpo::ops {

double sum_of_squares(const Tensor& x, OpContext& ctx) {
  double total = 0.0;
  sums_of_squares({&total, 1}, {&x, 1}, ctx);
  return total;
}

void sums_of_squares(std::span<double> sums, std::span<const Tensor> xs, OpContext& ctx) {
  const OperandChecks checks("sums_of_squares", ctx);
  CHECK(sums.size() == xs.size(), "sums_of_squares: {} arrays, room for {}", xs.size(),
        sums.size());
  for (const Tensor& x : xs) checks.expect("x", x, DType::kFloat32, x.shape());
  dispatch_device(
      ctx,
      [&] {
        for (size_t i = 0; i < xs.size(); ++i) sums[i] = sum_of_squares_cpu(xs[i]);
      },
      [&] { sums_of_squares_cuda(sums, xs, ctx); });
}

void convert(const Tensor& destination, const Tensor& source, OpContext& ctx) {
  const char* op = "convert";
  const OperandChecks checks(op, ctx);
  checks.expect_activation("source", source);
  checks.expect_activation("destination", destination);
  checks.expect_num_elements("destination", destination, source.num_elements());
  dispatch_device(
      ctx,
      [&] {
        dispatch_dtype(op, destination.dtype(), [&]<typename To>(To) {
          dispatch_dtype(op, source.dtype(),
                         [&]<typename From>(From) { convert_cpu<To, From>(destination, source); });
        });
      },
      [&] { convert_cuda(destination, source, ctx); });
}

void add_into(const Tensor& y, const Tensor& x, OpContext& ctx) {
  const char* op = "add_into";
  const OperandChecks checks(op, ctx);
  checks.expect("y", y, DType::kFloat32, y.shape());
  checks.expect("x", x, DType::kFloat32, x.shape());
  checks.expect_num_elements("x", x, y.num_elements());
  dispatch_device(
      ctx, [&] { add_into_cpu(y, x); }, [&] { add_into_cuda(y, x, ctx); });
}

}  // namespace grpo::ops
