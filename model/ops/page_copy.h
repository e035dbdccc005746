// Copies of KV cache pages. N planes (keys and values of every layer), P pages, E elements a page
// in one plane. A is float32 or bfloat16.
#pragma once

#include <cstdint>
#include <span>

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::ops {

struct PageCopy {
  int32_t destination;
  int32_t source;
};

// In every plane: page `destination` = page `source`, for all copies at once. No page is written
// twice, and none that is written is read.
void copy_pages(const Tensor& planes,              // [N, P, E] A, in place
                std::span<const PageCopy> copies,  // host
                OpContext& ctx);

}  // namespace grpo::ops
