// The softmax of one row of logits, in the order of softmax_order.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "model/ops/cpu/scalar_math.h"
#include "model/ops/log_softmax.h"
#include "model/ops/softmax_order.h"

namespace grpo::ops::cpu {

// A row of logits with what turns it into scaled logits z.
struct LogitsRow {
  const float* logits;  // [size]
  int64_t size;
  float inv_temperature;

  float scaled(int64_t token) const { return logits[token] * inv_temperature; }
};

// Tokens that take part: the listed ids or, without a list, those the cut keeps; and always_kept
// (-1 for none).
struct KeptSet {
  RowCut cut;
  std::span<const uint32_t> ids;  // ascending
  int64_t always_kept = -1;

  bool keeps_everything() const { return ids.empty() && cut.keeps_everything(); }
};

// weights[i] = exp(z[begin + i] - reference) for kept tokens of [begin, begin + count), else 0.
inline void softmax_weights(float* weights, const LogitsRow& row, float reference,
                            const KeptSet& kept, int64_t begin, int64_t count) {
  const float* logits = row.logits + begin;
  const auto weight = [&](int64_t i) {
    return exp_float(logits[i] * row.inv_temperature - reference);
  };
  if (kept.keeps_everything()) {
    for (int64_t i = 0; i < count; ++i) weights[i] = weight(i);
    return;
  }
  if (kept.ids.empty()) {
    const auto weigh = [&](int64_t from, int64_t to, float lowest) {
      for (int64_t i = from; i < to; ++i) {
        const float z = logits[i] * row.inv_temperature;
        weights[i] = z >= lowest ? exp_float(z - reference) : 0.0f;
      }
    };
    const int64_t ties = std::clamp<int64_t>(int64_t{kept.cut.last_tie} + 1 - begin, 0, count);
    weigh(0, ties, kept.cut.tie);
    weigh(ties, count, kept.cut.above);
  } else {
    std::fill_n(weights, count, 0.0f);
    const auto first = std::lower_bound(kept.ids.begin(), kept.ids.end(), begin);
    for (auto id = first; id != kept.ids.end() && *id < begin + count; ++id) {
      weights[*id - begin] = weight(*id - begin);
    }
  }
  const int64_t forced = kept.always_kept - begin;
  if (forced >= 0 && forced < count) weights[forced] = weight(forced);
}

// One block's weights exp(z - reference) and what turns them into exp(z - max).
struct SoftmaxBlock {
  std::array<float, kSoftmaxBlock> weights;  // zeros behind the row's end
  float sum;
  double scale;

  double mass() const { return static_cast<double>(sum) * scale; }
};

// The block that starts at token `begin`; max is the row's.
void softmax_block(SoftmaxBlock& block, const LogitsRow& row, float max, const KeptSet& kept,
                   int64_t begin);

// Maximum scaled logit of a row and the sum of exp(z - max) over a kept set.
struct SoftmaxStatistics {
  float max;
  double sum;
};

double softmax_row_sum(const LogitsRow& row, float max, const KeptSet& kept);

// Statistics over the whole row. Throws NonFiniteError naming op and row for NaN, +infinity or no
// finite logit.
SoftmaxStatistics softmax_row_statistics(const char* op, int64_t row_index, const LogitsRow& row);

// log of exp(z - max) / sum, in double, rounded once.
float softmax_logprob(const LogitsRow& row, int64_t token, const SoftmaxStatistics& statistics);

}  // namespace grpo::ops::cpu
