#include "model/ops/region.h"

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

namespace {

void check_region(const OperandChecks& checks, const char* op, const char* operand,
                  const MatrixRegion& region) {
  checks.expect_activation(operand, region.matrix);
  checks.expect_rank(operand, region.matrix, 2);
  CHECK(region.row >= 0 && region.num_rows >= 0 &&
            region.row + region.num_rows <= region.matrix.size(0) && region.col >= 0 &&
            region.num_cols >= 0 && region.col + region.num_cols <= region.matrix.size(1),
        "{}: {} is rows [{}, {}) and columns [{}, {}) of {}", op, operand, region.row,
        region.row + region.num_rows, region.col, region.col + region.num_cols,
        region.matrix.shape().to_string());
}

}  // namespace

void copy_regions(std::span<const RegionCopy> copies, const Tensor& num_changed, OpContext& ctx) {
  const char* op = "copy_regions";
  const OperandChecks checks(op, ctx);
  checks.expect_if_present("num_changed", num_changed, DType::kInt64, {1});
  for (const auto& [destination, source] : copies) {
    check_region(checks, op, "destination", destination);
    check_region(checks, op, "source", source);
    CHECK(destination.num_rows == source.num_rows && destination.num_cols == source.num_cols,
          "{}: {} x {} into {} x {}", op, source.num_rows, source.num_cols, destination.num_rows,
          destination.num_cols);
  }
  dispatch_device(
      ctx,
      [&] {
        for (const auto& [destination, source] : copies) {
          cpu::copy_region(destination, source, num_changed);
        }
      },
      [&] { cuda::copy_regions(copies, num_changed, ctx); });
}

void add_fingerprints(const Tensor& sum, std::span<const PlacedRegion> regions, DType dtype,
                      OpContext& ctx) {
  const char* op = "add_fingerprints";
  const OperandChecks checks(op, ctx);
  checks.expect("sum", sum, DType::kInt64, {1});
  for (const PlacedRegion& placed : regions) check_region(checks, op, "region", placed.region);
  dispatch_device(
      ctx,
      [&] {
        for (const auto& [region, place] : regions) cpu::add_fingerprint(sum, region, place, dtype);
      },
      [&] { cuda::add_fingerprints(sum, regions, dtype, ctx); });
}

}  // namespace grpo::ops
