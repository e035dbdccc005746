// What a sampling filter keeps of rows of logits in device memory.
#pragma once

#include "model/ops/cuda/softmax_rows.h"

namespace grpo::ops::cuda {

// [T] in the workspace, or null when the filter keeps everything; from statistics of all tokens.
// Rows that are not finite get no cut.
RowCut* row_cuts(const char* op, const SoftmaxRows& rows, const RowStatistics& statistics,
                 const SamplingFilter& filter, OpContext& ctx);

}  // namespace grpo::ops::cuda
