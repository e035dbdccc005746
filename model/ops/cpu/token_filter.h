// The tokens that a sampling filter keeps of one row: selection by partial sorting, since they are
// few beside the vocabulary.
#pragma once

#include "model/core/workspace.h"
#include "model/ops/cpu/softmax_row.h"
#include "model/ops/log_softmax.h"

namespace grpo::ops::cpu {

// `max` is the largest scaled logit of the row.
RowCut filter_row(const LogitsRow& row, float max, const SamplingFilter& filter,
                  Workspace& workspace);

// Appends what the cut keeps of the row; `all` are the statistics of the whole row.
void append_kept(KeptTokens& kept, const LogitsRow& row, const RowCut& cut,
                 const SoftmaxStatistics& all, int32_t max_kept_ids);

}  // namespace grpo::ops::cpu
