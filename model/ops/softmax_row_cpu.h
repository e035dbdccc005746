// The softmax of one row of logits, in one fixed order for every caller: blocks of kSoftmaxBlock
// tokens, each summed in fp32 over kSumLanes lanes and a tree, the blocks in double in ascending
// order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "model/ops/cpu_math.h"
#include "model/ops/lane_sum_cpu.h"
#include "model/ops/log_softmax.h"

namespace grpo::ops {

constexpr int64_t kSoftmaxBlock = 1024;

// A row of logits with what turns it into scaled logits z.
struct LogitsRow {
  const float* logits;  // [size]
  int64_t size;
  float inv_temperature;

  float scaled(int64_t token) const { return logits[token] * inv_temperature; }
};

// Tokens that take part: those the cut keeps, and always_kept (-1 for none).
struct KeptSet {
  TokenCut cut;
  int64_t always_kept = -1;
};

// weights[i] = exp(z[begin + i] - max) for kept tokens of [begin, begin + count), else 0.
inline void softmax_block_weights(float* weights, const LogitsRow& row, float max,
                                  const KeptSet& kept, int64_t begin, int64_t count) {
  const float* logits = row.logits + begin;
  if (kept.cut.keeps_everything()) {
    for (int64_t i = 0; i < count; ++i)
      weights[i] = exp_float(logits[i] * row.inv_temperature - max);
    return;
  }
  // z > threshold is z >= the next float above it.
  const float threshold = kept.cut.threshold;
  const float above = std::nextafter(threshold, std::numeric_limits<float>::infinity());
  const auto weigh = [&](int64_t from, int64_t to, float lowest) {
    for (int64_t i = from; i < to; ++i) {
      const float z = logits[i] * row.inv_temperature;
      weights[i] = z >= lowest ? exp_float(z - max) : 0.0f;
    }
  };
  const int64_t ties = std::clamp<int64_t>(int64_t{kept.cut.last_tie} + 1 - begin, 0, count);
  weigh(0, ties, threshold);
  weigh(ties, count, above);
  const int64_t forced = kept.always_kept - begin;
  if (forced >= 0 && forced < count) {
    weights[forced] = exp_float(logits[forced] * row.inv_temperature - max);
  }
}

// Maximum scaled logit of a row and the sum of exp(z - max) over a kept set.
struct SoftmaxStatistics {
  float max;
  double sum;
};

float softmax_row_max(const LogitsRow& row);
// One block's sum; count <= kSoftmaxBlock.
float softmax_block_sum(const LogitsRow& row, float max, const KeptSet& kept, int64_t begin,
                        int64_t count);
double softmax_row_sum(const LogitsRow& row, float max, const KeptSet& kept);

// Statistics over the whole row. Throws NonFiniteError naming op and row for NaN, +infinity or no
// finite logit.
SoftmaxStatistics softmax_row_statistics(const char* op, int64_t row_index, const LogitsRow& row);

// log of exp(z - max) / sum, in double, rounded once.
float softmax_logprob(const LogitsRow& row, int64_t token, const SoftmaxStatistics& statistics);

}  // namespace grpo::ops
