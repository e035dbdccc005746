// Checks of operands, made once for all devices before an operator's implementation runs.
#pragma once

#include <cstdint>

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

// Every check throws an InternalError that names operator, operand, what it is and what it should
// be.
class OperandChecks {
 public:
  OperandChecks(const char* op, const OpContext& ctx) : op_(op), device_(ctx.device) {}

  void expect(const char* operand, const Tensor& tensor, DType dtype, const Shape& shape) const;
  // As expect(), for operands that may be absent.
  void expect_if_present(const char* operand, const Tensor& tensor, DType dtype,
                         const Shape& shape) const;
  // Present, on the operator's device, of this rank; for operands that define the sizes of the
  // others.
  void expect_rank(const char* operand, const Tensor& tensor, int rank) const;
  // float32 or bfloat16.
  void expect_activation(const char* operand, const Tensor& tensor) const;
  // Same number of elements and same device, whatever the shape.
  void expect_num_elements(const char* operand, const Tensor& tensor, int64_t count) const;

 private:
  void fail(const char* operand, const Tensor& tensor, const std::string& wanted) const;

  const char* op_;
  Device device_;
};

}  // namespace grpo::ops
