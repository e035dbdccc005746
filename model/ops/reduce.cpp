#include "model/ops/reduce.h"

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

void largest_magnitudes(std::span<float> largest, std::span<const Tensor> xs, OpContext& ctx) {
  const OperandChecks checks("largest_magnitudes", ctx);
  CHECK(largest.size() == xs.size(), "largest_magnitudes: {} arrays, room for {}", xs.size(),
        largest.size());
  for (const Tensor& x : xs) checks.expect("x", x, DType::kFloat32, x.shape());
  dispatch_device(
      ctx,
      [&] {
        for (size_t i = 0; i < xs.size(); ++i) largest[i] = cpu::largest_magnitude(xs[i]);
      },
      [&] { cuda::largest_magnitudes(largest, xs, ctx); });
}

FixedPoint square_sum(std::span<const Tensor> xs, const SquareGrid& grid, OpContext& ctx) {
  const OperandChecks checks("square_sum", ctx);
  for (const Tensor& x : xs) checks.expect("x", x, DType::kFloat32, x.shape());
  FixedPoint units = 0;
  dispatch_device(
      ctx,
      [&] {
        for (const Tensor& x : xs) units += cpu::square_sum(x, grid);
      },
      [&] { units = cuda::square_sum(xs, grid, ctx); });
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
                         [&]<typename From>(From) { cpu::convert<To, From>(destination, source); });
        });
      },
      [&] { cuda::convert(destination, source, ctx); });
}

void add_into(const Tensor& y, const Tensor& x, OpContext& ctx) {
  const char* op = "add_into";
  const OperandChecks checks(op, ctx);
  checks.expect("y", y, DType::kFloat32, y.shape());
  checks.expect("x", x, DType::kFloat32, x.shape());
  checks.expect_num_elements("x", x, y.num_elements());
  dispatch_device(
      ctx, [&] { cpu::add_into(y, x); }, [&] { cuda::add_into(y, x, ctx); });
}

}  // namespace grpo::ops
