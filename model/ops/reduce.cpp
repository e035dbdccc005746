#include "model/ops/reduce.h"

#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"
#include "model/ops/reduce_cpu.h"
#include "model/ops/reduce_cuda.h"

namespace grpo::ops {

void largest_magnitudes(std::span<float> largest, std::span<const Tensor> xs, OpContext& ctx) {
  const OperandChecks checks("largest_magnitudes", ctx);
  CHECK(largest.size() == xs.size(), "largest_magnitudes: {} arrays, room for {}", xs.size(),
        largest.size());
  for (const Tensor& x : xs) checks.expect("x", x, DType::kFloat32, x.shape());
  dispatch_device(
      ctx,
      [&] {
        for (size_t i = 0; i < xs.size(); ++i) largest[i] = largest_magnitude_cpu(xs[i]);
      },
      [&] { largest_magnitudes_cuda(largest, xs, ctx); });
}

FixedPoint square_sum(std::span<const Tensor> xs, const SquareGrid& grid, OpContext& ctx) {
  const OperandChecks checks("square_sum", ctx);
  for (const Tensor& x : xs) checks.expect("x", x, DType::kFloat32, x.shape());
  FixedPoint units = 0;
  dispatch_device(
      ctx,
      [&] {
        for (const Tensor& x : xs) units += square_sum_cpu(x, grid);
      },
      [&] { units = square_sum_cuda(xs, grid, ctx); });
  return units;
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
