#include "model/core/parameter_spec.h"

namespace grpo {

int64_t ParameterSpec::rows() const {
  int64_t total = 0;
  for (const LogicalTensor& part : parts) total += part.rows;
  return total;
}

int64_t num_elements(const std::vector<ParameterSpec>& specs) {
  int64_t total = 0;
  for (const ParameterSpec& spec : specs) total += spec.num_elements();
  return total;
}

}  // namespace grpo
