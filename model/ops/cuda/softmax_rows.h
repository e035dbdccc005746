// Statistics of rows of logits in device memory, the same for every caller: each row's maximum and
// sums. B blocks a row.
#pragma once

#include <cstdint>

#include "model/ops/log_softmax.h"

namespace grpo::ops::cuda {

// Rows [num_rows, vocabulary] with what turns them into scaled logits.
struct SoftmaxRows {
  float* logits;
  int64_t num_rows;
  int64_t vocabulary;
  int64_t num_blocks;
  float inv_temperature;
  bool aligned;  // all rows, for 16-byte accesses
};

SoftmaxRows softmax_rows(const Tensor& logits, float inv_temperature);

// Of each block: its largest z, and the sums of its weights over all and over kept tokens.
struct BlockSums {
  float* max;   // [T, B]
  float* all;   // [T, B]
  float* kept;  // [T, B]; `all` until add_kept_sums
};

// First row with a defect, or one no row has.
struct RowDefects {
  int32_t non_finite;  // NaN, +infinity or no finite logit
  int32_t target;      // outside the vocabulary
};

// Which tokens count as kept. All pointers are to device memory; the default keeps everything.
struct KeptRows {
  const uint32_t* offsets = nullptr;  // [T + 1] into ids; null where no row has ids
  const uint32_t* ids = nullptr;      // of all rows, ascending in each
  const RowCut* cuts = nullptr;       // [T], of rows without ids; null keeps everything of them
  const int32_t* targets = nullptr;   // [T], counted as kept; null for none

  bool keeps_everything() const { return offsets == nullptr && cuts == nullptr; }
};

// Which rows take part, and the targets to check. All pointers are to device memory.
struct RowSelection {
  const int32_t* targets = nullptr;    // [T]; null for none
  const float* dprocessed = nullptr;   // [T]; null, or rows whose two gradients are 0 are left out
  const float* dunfiltered = nullptr;  // [T]; null for 0
};

// In the workspace (but for rows that the caller gave room for), valid in the caller's Scope.
struct RowStatistics {
  BlockSums blocks;
  RowSums* rows;        // [T]
  RowDefects* defects;  // one
};

// `sums` [T] of device memory receives the rows' sums; null: the workspace does.
RowStatistics softmax_statistics(const char* op, const SoftmaxRows& rows,
                                 const RowSelection& selection, RowSums* sums, OpContext& ctx);

// Adds the sums over kept tokens to statistics of all tokens. Blocks without a kept token are not
// read.
void add_kept_sums(const char* op, RowStatistics& statistics, const SoftmaxRows& rows,
                   const RowSelection& selection, const KeptRows& kept, OpContext& ctx);

// Waits for the device. Throws what the CPU throws: InternalError for a target outside the
// vocabulary, NonFiniteError, both for the first such row.
void check_rows(const char* op, const SoftmaxRows& rows, const RowStatistics& statistics,
                const int32_t* targets, OpContext& ctx);

}  // namespace grpo::ops::cuda
