// CPU implementation behind page_copy.h; operands are checked.
#pragma once

#include "model/ops/page_copy.h"

namespace grpo::ops {

void copy_pages_cpu(const Tensor& planes, std::span<const PageCopy> copies);

}  // namespace grpo::ops
