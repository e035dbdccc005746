// CUDA implementations behind embedding.h; operands are checked, token ids are not. The lookup
// is rows_cuda.h's gather.
#pragma once

#include "model/ops/embedding.h"

namespace grpo::ops {

void embedding_backward_cuda(const Tensor& dweight, const Tensor& dout, const Tensor& tokens,
                             bool accumulate, OpContext& ctx);

}  // namespace grpo::ops
