#include "model/ops/non_finite_row.h"

#include "model/core/errors.h"

namespace grpo::ops {

void throw_non_finite_row(const char* op, int64_t row, float largest, double sum) {
  throw NonFiniteError(
      fmt::format("{}: logits of row {} are not finite (largest {}, sum of exponentials {})", op,
                  row, largest, sum));
}

}  // namespace grpo::ops
