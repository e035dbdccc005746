// Stored sets of kept tokens by their definition, for comparison with what operators make of them.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "model/ops/cpu/scalar_math.h"
#include "model/ops/kept_tokens.h"
#include "model/ops/log_softmax.h"
#include "model/ops/sampler.h"
#include "tests/ops/op_test.h"

namespace grpo::ops {

// What a row stored by id and what one stored by a threshold keeps, in float64.
inline bool is_member(const KeptTokensView& kept, int64_t row, int32_t token, float scaled_logit,
                      double log_sum_exp) {
  const std::span<const uint32_t> ids = kept.row_ids(row);
  if (!ids.empty()) {
    return std::find(ids.begin(), ids.end(), static_cast<uint32_t>(token)) != ids.end();
  }
  const KeptThreshold threshold = kept.threshold(row);
  const double relative = static_cast<double>(scaled_logit) - log_sum_exp;
  return relative > threshold.above || (relative == threshold.above && token <= threshold.last_tie);
}

// Whether a row of one and a row of another are the same set, stored in the same way.
inline bool same_set(const KeptTokensView& a, int64_t a_row, const KeptTokensView& b,
                     int64_t b_row) {
  return same_tokens(a.rows(a_row, 1), b.rows(b_row, 1), 0);
}

class KeptSetTestTensors : public OpTestTensors {
 public:
  KeptTokens filtered(const Tensor& logits, const SamplingFilter& filter) {
    KeptTokens kept;
    filter_tokens(kept, logits, filter, ctx());
    return kept;
  }

  // The program's own log-sum-exp of each row.
  std::vector<double> log_sum_exps(const Tensor& logits, float inv_temperature) {
    const int64_t rows = logits.size(0);
    const TokenLogprobs out{make(DType::kFloat32, {rows}), make(DType::kFloat32, {rows}),
                            make(DType::kUint8, {rows, kRowSumsBytes})};
    const std::vector<int32_t> zeros(static_cast<size_t>(rows), 0);
    token_logprobs(out, logits, ints({rows}, zeros), {}, inv_temperature, ctx());
    std::vector<double> result;
    for (int64_t t = 0; t < rows; ++t) {
      RowSums sums;
      std::memcpy(&sums, out.sums.data<uint8_t>() + t * kRowSumsBytes, sizeof(sums));
      result.push_back(static_cast<double>(sums.max) + cpu::log_double(sums.all));
    }
    return result;
  }

  // The members of each row's set under these logits, ascending.
  std::vector<std::vector<int32_t>> members(const KeptTokensView& kept, const Tensor& logits,
                                            float inv_temperature) {
    const std::vector<double> log_sums = log_sum_exps(logits, inv_temperature);
    std::vector<std::vector<int32_t>> result(log_sums.size());
    for (int64_t t = 0; t < logits.size(0); ++t) {
      const auto row = static_cast<size_t>(t);
      const float* values = logits.data<float>() + t * logits.size(1);
      for (int32_t v = 0; v < logits.size(1); ++v) {
        if (kept.is_absent() || is_member(kept, t, v, values[v] * inv_temperature, log_sums[row])) {
          result[row].push_back(v);
        }
      }
    }
    return result;
  }
};

class KeptSetTest : public ::testing::Test, public KeptSetTestTensors {};

}  // namespace grpo::ops
