#include "model/ops/rope.h"

#include <cmath>
#include <vector>

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

void fill_rope_table(const Tensor& table, double theta) {
  CHECK(table.rank() == 2 && table.size(1) % 2 == 0 && table.dtype() == DType::kFloat32,
        "fill_rope_table: table is {} {}, wanted float32 [max_positions, even head dim]",
        dtype_name(table.dtype()), table.shape().to_string());
  CHECK(theta > 0.0, "fill_rope_table: theta is {}, wanted above 0", theta);
  if (table.device().is_rehearsal) return;  // nobody reads it, and it may be long
  const int64_t head_dim = table.size(1);
  const int64_t half = head_dim / 2;
  // Computed on the host for every device, so that all of them turn by the same angles.
  std::vector<float> values(static_cast<size_t>(table.num_elements()));
  for (int64_t position = 0; position < table.size(0); ++position) {
    float* row = values.data() + position * head_dim;
    for (int64_t i = 0; i < half; ++i) {
      const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
      // Each step rounds to float32, as in Hugging Face's table; the functions themselves are exact
      // enough in double to be correctly rounded.
      const auto power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
      const float angle = static_cast<float>(position) * (1.0f / power);
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      row[half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  copy_tensor(table, Tensor(values.data(), DType::kFloat32, table.shape(), Device::cpu()));
}

void qkv_rope_forward(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                      const Tensor& positions, const Tensor& table, OpContext& ctx) {
  const char* op = "qkv_rope_forward";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("q", q, 3);
  checks.expect_activation("q", q);
  checks.expect_rank("keys", keys, 3);
  checks.expect("keys", keys, q.dtype(), {keys.size(0), keys.size(1), q.size(2)});
  checks.expect("values", values, q.dtype(), keys.shape());
  checks.expect("qkv", qkv, q.dtype(), {q.size(0), (q.size(1) + 2 * keys.size(1)) * q.size(2)});
  checks.expect("positions", positions, DType::kInt32, {q.size(0), 2});
  checks.expect_rank("table", table, 2);
  checks.expect("table", table, DType::kFloat32, {table.size(0), q.size(2)});
  CHECK(q.size(2) % 2 == 0, "{}: head dim {} is odd", op, q.size(2));
  dispatch(
      op, q.dtype(), ctx,
      [&]<typename A>(A) { cpu::qkv_rope_forward<A>(q, keys, values, qkv, positions, table); },
      [&] { cuda::qkv_rope_forward(q, keys, values, qkv, positions, table, ctx); });
}

void qkv_rope_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dkeys,
                       const Tensor& dvalues, const Tensor& positions, const Tensor& table,
                       OpContext& ctx) {
  const char* op = "qkv_rope_backward";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("dq", dq, 3);
  checks.expect_activation("dq", dq);
  checks.expect_rank("dkeys", dkeys, 3);
  checks.expect("dkeys", dkeys, dq.dtype(), {dq.size(0), dkeys.size(1), dq.size(2)});
  checks.expect("dvalues", dvalues, dq.dtype(), dkeys.shape());
  checks.expect("dqkv", dqkv, dq.dtype(),
                {dq.size(0), (dq.size(1) + 2 * dkeys.size(1)) * dq.size(2)});
  checks.expect("positions", positions, DType::kInt32, {dq.size(0), 2});
  checks.expect_rank("table", table, 2);
  checks.expect("table", table, DType::kFloat32, {table.size(0), dq.size(2)});
  CHECK(dq.size(2) % 2 == 0, "{}: head dim {} is odd", op, dq.size(2));
  dispatch(
      op, dq.dtype(), ctx,
      [&]<typename A>(A) { cpu::qkv_rope_backward<A>(dqkv, dq, dkeys, dvalues, positions, table); },
      [&] { cuda::qkv_rope_backward(dqkv, dq, dkeys, dvalues, positions, table, ctx); });
}

}  // namespace grpo::ops
