#include "model/ops/sampler_cpu.h"

#include "model/core/errors.h"
#include "model/ops/softmax_row_cpu.h"
#include "model/ops/token_cut_cpu.h"

namespace grpo::ops {

namespace {

// First kept token at which the cumulative weight exceeds uniform * sum. The cumulative weight is
// the sum's own: whole blocks, then token by token within the block it falls into.
int32_t draw(const LogitsRow& row, const SoftmaxStatistics& statistics, const KeptSet& kept,
             double uniform) {
  const double wanted = uniform * statistics.sum;
  double before = 0.0;
  int32_t last_possible = -1;  // rounding may leave the block's tokens just short of its sum
  for (int64_t begin = 0; begin < row.size; begin += kSoftmaxBlock) {
    const int64_t count = std::min(kSoftmaxBlock, row.size - begin);
    const double sum = softmax_block_sum(row, statistics.max, kept, begin, count);
    if (before + sum <= wanted) {
      before += sum;
      continue;
    }
    std::array<float, kSoftmaxBlock> weights;
    softmax_block_weights(weights.data(), row, statistics.max, kept, begin, count);
    double cumulative = before;
    for (int64_t i = 0; i < count; ++i) {
      const float weight = weights[static_cast<size_t>(i)];
      if (weight == 0.0f) continue;
      cumulative += static_cast<double>(weight);
      last_possible = static_cast<int32_t>(begin + i);
      if (cumulative > wanted) break;
    }
    break;
  }
  CHECK(last_possible >= 0, "no token drawn at {} of {}", wanted, statistics.sum);
  return last_possible;
}

}  // namespace

void sample_tokens_cpu(SampledToken* out, const Tensor& logits, const double* uniforms,
                       const SamplingFilter& filter, OpContext& ctx) {
  const int64_t vocabulary = logits.size(1);
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const LogitsRow row{logits.data<float>() + t * vocabulary, vocabulary,
                        filter.inv_temperature()};
    const SoftmaxStatistics all = softmax_row_statistics("sample_tokens", t, row);
    const TokenCut cut = row_cut(row, all, filter, ctx.workspace);
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
