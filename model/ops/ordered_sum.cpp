#include "model/ops/ordered_sum.h"

#include <array>

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

void ordered_sum(const Tensor& out, std::span<const Tensor> rows, OpContext& ctx) {
  const OperandChecks checks("ordered_sum", ctx);
  CHECK(!rows.empty(), "ordered_sum of no rows");
  CHECK(out.dtype() == DType::kFloat32 || out.dtype() == DType::kInt64, "ordered_sum of {}",
        dtype_name(out.dtype()));
  for (const Tensor& row : rows) checks.expect("row", row, out.dtype(), out.shape());
  checks.expect("out", out, out.dtype(), out.shape());
  // A later call goes on with what the one before has summed.
  std::array<Tensor, kMaxRowsAtOnce> some;
  for (size_t begin = 0; begin < rows.size();) {
    size_t count = 0;
    if (begin > 0) some[count++] = out;
    while (count < some.size() && begin < rows.size()) some[count++] = rows[begin++];
    const std::span<const Tensor> summed(some.data(), count);
    dispatch_device(
        ctx, [&] { cpu::ordered_sum(out, summed); }, [&] { cuda::ordered_sum(out, summed, ctx); });
  }
}

}  // namespace grpo::ops
