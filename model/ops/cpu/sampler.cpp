#include "model/core/errors.h"
#include "model/ops/cpu/entry_points.h"
#include "model/ops/cpu/softmax_row.h"
#include "model/ops/cpu/token_filter.h"

namespace grpo::ops::cpu {

namespace {

// First token of the block at which `before` plus the cumulative mass exceeds `wanted`; rounding
// may leave the tokens just short of the block's mass, and then it is the last possible one.
int64_t draw_in_block(const SoftmaxBlock& block, double before, double wanted) {
  const auto mass = [&](double weight) { return weight * block.scale; };
  int64_t last_possible = 0;
  for (int64_t run = 0; run < kSoftmaxBlock; run += kDrawRun) {
    double sum = 0.0;
    for (int64_t i = run; i < run + kDrawRun; ++i) {
      const auto weight = static_cast<double>(block.weights[static_cast<size_t>(i)]);
      if (weight > 0.0) last_possible = i;
      sum += weight;
    }
    if (before + mass(sum) <= wanted) {
      before += mass(sum);
      continue;
    }
    for (int64_t i = run; i < run + kDrawRun; ++i) {
      before += mass(static_cast<double>(block.weights[static_cast<size_t>(i)]));
      if (before > wanted) return i;
    }
    break;
  }
  return last_possible;
}

// First kept token at which the cumulative probability exceeds uniform.
int32_t draw(const LogitsRow& row, const SoftmaxStatistics& statistics, const KeptSet& kept,
             double uniform) {
  const double wanted = uniform * statistics.sum;
  double before = 0.0;
  SoftmaxBlock block;
  for (int64_t begin = 0; begin < row.size; begin += kSoftmaxBlock) {
    softmax_block(block, row, statistics.max, kept, begin);
    if (before + block.mass() > wanted) {
      return static_cast<int32_t>(begin + draw_in_block(block, before, wanted));
    }
    before += block.mass();
  }
  throw InternalError(fmt::format("no token drawn at {} of {}", wanted, statistics.sum));
}

struct KeptDistribution {
  SoftmaxStatistics all;
  SoftmaxStatistics statistics;  // over the kept tokens
  RowCut cut;
};

KeptDistribution kept_distribution(int64_t t, const LogitsRow& row, const SamplingFilter& filter,
                                   OpContext& ctx) {
  const SoftmaxStatistics all = softmax_row_statistics("sample_tokens", t, row);
  const RowCut cut = filter_row(row, all.max, filter, ctx.workspace);
  const KeptSet set{.cut = cut, .ids = {}};
  if (set.keeps_everything()) return {all, all, cut};
  return {all, {all.max, softmax_row_sum(row, all.max, set)}, cut};
}

}  // namespace

void sample_tokens(SampledToken* out, KeptTokens* kept, const Tensor& logits,
                   std::span<const TokenDraw> draws, const SamplingFilter& filter, OpContext& ctx) {
  const int64_t vocabulary = logits.size(1);
  KeptDistribution distribution{};
  for (size_t i = 0; i < draws.size(); ++i) {
    const int64_t t = draws[i].row;
    const LogitsRow row{logits.data<float>() + t * vocabulary, vocabulary,
                        filter.inv_temperature()};
    const bool is_new_row = i == 0 || t != draws[i - 1].row;
    if (ctx.device.is_rehearsal) {
      filter_row(row, 0.0f, filter, ctx.workspace);
      out[i] = {0, 0.0f};
      continue;
    }
    if (is_new_row) {
      distribution = kept_distribution(t, row, filter, ctx);
      if (kept != nullptr) {
        append_kept(*kept, row, distribution.cut, distribution.all, filter.max_kept_ids);
      }
    }
    const auto& statistics = distribution.statistics;
    const int32_t token =
        draw(row, statistics, {.cut = distribution.cut, .ids = {}}, draws[i].uniform);
    out[i] = {token, softmax_logprob(row, token, statistics)};
  }
}

void argmax_tokens(SampledToken* out, const Tensor& logits) {
  const int64_t vocabulary = logits.size(1);
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const LogitsRow row{logits.data<float>() + t * vocabulary, vocabulary, 1.0f};
    const SoftmaxStatistics statistics = softmax_row_statistics("argmax_tokens", t, row);
    const float* largest = std::find(row.logits, row.logits + vocabulary, statistics.max);
    const auto token = static_cast<int32_t>(largest - row.logits);
    out[t] = {token, softmax_logprob(row, token, statistics)};
  }
}

}  // namespace grpo::ops::cpu
