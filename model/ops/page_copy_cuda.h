// CUDA implementation behind page_copy.h; operands are checked.
#pragma once

#include "model/ops/page_copy.h"

namespace grpo::ops {

void copy_pages_cuda(const Tensor& planes, std::span<const PageCopy> copies, OpContext& ctx);

}  // namespace grpo::ops
