#include "model/ops/operand_checks.h"

namespace grpo::ops {

void OperandChecks::fail(const char* operand, const Tensor& tensor,
                         const std::string& wanted) const {
  const std::string found =
      tensor.is_absent() ? std::string("absent")
                         : fmt::format("{} {} on {}", dtype_name(tensor.dtype()),
                                       tensor.shape().to_string(), device_name(tensor.device()));
  throw InternalError(fmt::format("{}: {} is {}, wanted {} on {}", op_, operand, found, wanted,
                                  device_name(device_)));
}

void OperandChecks::expect(const char* operand, const Tensor& tensor, DType dtype,
                           const Shape& shape) const {
  if (tensor.is_absent() || tensor.dtype() != dtype || tensor.shape() != shape ||
      tensor.device() != device_) {
    fail(operand, tensor, fmt::format("{} {}", dtype_name(dtype), shape.to_string()));
  }
}

void OperandChecks::expect_if_present(const char* operand, const Tensor& tensor, DType dtype,
                                      const Shape& shape) const {
  if (!tensor.is_absent()) expect(operand, tensor, dtype, shape);
}

void OperandChecks::expect_rank(const char* operand, const Tensor& tensor, int rank) const {
  if (tensor.rank() != rank || tensor.device() != device_) {
    fail(operand, tensor, fmt::format("{} dims", rank));
  }
}

void OperandChecks::expect_activation(const char* operand, const Tensor& tensor) const {
  if (tensor.is_absent() || tensor.device() != device_ ||
      (tensor.dtype() != DType::kFloat32 && tensor.dtype() != DType::kBfloat16)) {
    fail(operand, tensor, "float32 or bfloat16");
  }
}

void OperandChecks::expect_num_elements(const char* operand, const Tensor& tensor,
                                        int64_t count) const {
  if (tensor.is_absent() || tensor.num_elements() != count || tensor.device() != device_) {
    fail(operand, tensor, fmt::format("{} elements", count));
  }
}

}  // namespace grpo::ops
