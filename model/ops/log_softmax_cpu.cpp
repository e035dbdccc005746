#include "model/ops/log_softmax_cpu.h"

#include "model/core/errors.h"
#include "model/ops/softmax_row_cpu.h"
#include "model/ops/token_cut_cpu.h"

namespace grpo::ops {

namespace {

LogitsRow row_of(const Tensor& logits, int64_t t, float inv_temperature) {
  return {logits.data<float>() + t * logits.size(1), logits.size(1), inv_temperature};
}

int32_t target_of(const char* op, const Tensor& targets, int64_t t, int64_t vocabulary) {
  const int32_t target = targets.data<int32_t>()[t];
  CHECK(target >= 0 && target < vocabulary, "{}: target {} of row {} is outside [0, {})", op,
        target, t, vocabulary);
  return target;
}

KeptSet kept_set(const TokenCut* cuts, int64_t t, int32_t target) {
  return {cuts == nullptr ? TokenCut{} : cuts[t], target};
}

// Overwrites a row of logits by inv_temperature * (dprocessed (onehot - p_kept) + dunfiltered
// (onehot - p_all)).
void backward_row(float* logits, const LogitsRow& row, int64_t t, int32_t target,
                  const KeptSet& kept, float dprocessed, float dunfiltered) {
  const SoftmaxStatistics all = softmax_row_statistics("token_logprobs_backward", t, row);
  const bool is_cut = !kept.cut.keeps_everything();
  const double kept_sum = is_cut ? softmax_row_sum(row, all.max, kept) : all.sum;
  const auto kept_factor = static_cast<float>(-row.inv_temperature * dprocessed / kept_sum);
  const auto all_factor = static_cast<float>(-row.inv_temperature * dunfiltered / all.sum);
  for (int64_t begin = 0; begin < row.size; begin += kSoftmaxBlock) {
    const int64_t count = std::min(kSoftmaxBlock, row.size - begin);
    std::array<float, kSoftmaxBlock> kept_weights;
    std::array<float, kSoftmaxBlock> all_weights;
    softmax_weights(kept_weights.data(), row, all.max, kept, begin, count);
    softmax_weights(all_weights.data(), row, all.max, {}, begin, count);
    for (int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<size_t>(i);
      logits[begin + i] =
          std::fma(kept_factor, kept_weights[index], all_factor * all_weights[index]);
    }
  }
  logits[target] += row.inv_temperature * (dprocessed + dunfiltered);
}

}  // namespace

void compute_cuts_cpu(TokenCut* cuts, const Tensor& logits, const SamplingFilter& filter,
                      OpContext& ctx) {
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const LogitsRow row = row_of(logits, t, filter.inv_temperature());
    const float max =
        ctx.device.is_rehearsal ? 0.0f : softmax_row_statistics("compute_cuts", t, row).max;
    cuts[t] = row_cut(row, max, filter, ctx.workspace);
  }
}

void token_logprobs_cpu(const TokenLogprobs& out, const Tensor& logits, const Tensor& targets,
                        const TokenCut* cuts, float inv_temperature) {
  const char* op = "token_logprobs";
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const LogitsRow row = row_of(logits, t, inv_temperature);
    const int32_t target = target_of(op, targets, t, row.size);
    const SoftmaxStatistics all = softmax_row_statistics(op, t, row);
    const float unfiltered = softmax_logprob(row, target, all);
    const KeptSet kept = kept_set(cuts, t, target);
    out.unfiltered.data<float>()[t] = unfiltered;
    out.processed.data<float>()[t] =
        kept.cut.keeps_everything()
            ? unfiltered
            : softmax_logprob(row, target, {all.max, softmax_row_sum(row, all.max, kept)});
  }
}

void token_logprobs_backward_cpu(const Tensor& logits, const LogprobGradients& gradients,
                                 const Tensor& targets, const TokenCut* cuts,
                                 float inv_temperature) {
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const LogitsRow row = row_of(logits, t, inv_temperature);
    const int32_t target = target_of("token_logprobs_backward", targets, t, row.size);
    const float dprocessed = gradients.dprocessed.data<float>()[t];
    const float dunfiltered =
        gradients.dunfiltered.is_absent() ? 0.0f : gradients.dunfiltered.data<float>()[t];
    float* data = logits.data<float>() + t * row.size;
    if (dprocessed == 0.0f && dunfiltered == 0.0f) {
      std::fill_n(data, row.size, 0.0f);
    } else {
      backward_row(data, row, t, target, kept_set(cuts, t, target), dprocessed, dunfiltered);
    }
  }
}

}  // namespace grpo::ops
