#include "model/ops/sampler_cpu.h"

#include "model/core/errors.h"
#include "model/ops/softmax_row_cpu.h"
#include "model/ops/token_cut_cpu.h"

namespace grpo::ops {

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

}  // namespace

void sample_tokens_cpu(SampledToken* out, const Tensor& logits, const double* uniforms,
                       const SamplingFilter& filter, OpContext& ctx) {
  const int64_t vocabulary = logits.size(1);
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const LogitsRow row{logits.data<float>() + t * vocabulary, vocabulary,
                        filter.inv_temperature()};
    if (ctx.device.is_rehearsal) {
      out[t] = {0, 0.0f, row_cut(row, 0.0f, filter, ctx.workspace)};
      continue;
    }
    const SoftmaxStatistics all = softmax_row_statistics("sample_tokens", t, row);
    const TokenCut cut = row_cut(row, all.max, filter, ctx.workspace);
    const KeptSet kept{cut};
    const double sum = cut.keeps_everything() ? all.sum : softmax_row_sum(row, all.max, kept);
    const SoftmaxStatistics statistics{all.max, sum};
    const int32_t token = draw(row, statistics, kept, uniforms[t]);
    out[t] = {token, softmax_logprob(row, token, statistics), cut};
  }
}

void argmax_tokens_cpu(SampledToken* out, const Tensor& logits) {
  const int64_t vocabulary = logits.size(1);
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const LogitsRow row{logits.data<float>() + t * vocabulary, vocabulary, 1.0f};
    const SoftmaxStatistics statistics = softmax_row_statistics("argmax_tokens", t, row);
    const float* largest = std::find(row.logits, row.logits + vocabulary, statistics.max);
    const auto token = static_cast<int32_t>(largest - row.logits);
    out[t] = {token, softmax_logprob(row, token, statistics), TokenCut{}};
  }
}

}  // namespace grpo::ops
