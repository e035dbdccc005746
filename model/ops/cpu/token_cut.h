// The cut of one row: selection by partial sorting, since the kept set is small beside the
// vocabulary.
#pragma once

#include "model/core/workspace.h"
#include "model/ops/cpu/softmax_row.h"
#include "model/ops/log_softmax.h"

namespace grpo::ops::cpu {

// `max` is the largest scaled logit of the row.
TokenCut row_cut(const LogitsRow& row, float max, const SamplingFilter& filter,
                 Workspace& workspace);

}  // namespace grpo::ops::cpu
