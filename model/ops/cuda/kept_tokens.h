// Kept tokens on their way between the host and device memory.
#pragma once

#include "model/ops/cuda/softmax_rows.h"
#include "model/ops/kept_tokens.h"

namespace grpo::ops::cuda {

// Copies of `kept` in the workspace, thresholds turned into cuts by the rows' sums [T] in device
// memory; `targets` [T] count as kept. An absent view gives rows that keep everything.
KeptRows kept_to_device(const char* op, const KeptTokensView& kept, const RowSums* sums,
                        const int32_t* targets, OpContext& ctx);

// Appends the sets that `cuts` [T] keep; null keeps everything. Waits for the device; rows that are
// not sound have been refused before.
void append_kept_rows(const char* op, KeptTokens& kept, const SoftmaxRows& rows,
                      const RowStatistics& statistics, const RowCut* cuts, int32_t max_kept_ids,
                      OpContext& ctx);

}  // namespace grpo::ops::cuda
