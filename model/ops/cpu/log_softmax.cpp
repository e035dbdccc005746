#include <cstring>

#include "model/core/errors.h"
#include "model/ops/cpu/entry_points.h"
#include "model/ops/cpu/softmax_row.h"
#include "model/ops/cpu/token_filter.h"

namespace grpo::ops::cpu {

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

// Sums of a row and its kept set, and the set under this row's log-sum-exp.
struct RowStatistics {
  RowSums sums;
  KeptSet kept;
};

KeptSet kept_set(const KeptTokensView& kept, int64_t t, int32_t target,
                 const SoftmaxStatistics& all) {
  if (kept.is_absent()) return {.cut = {}, .ids = {}, .always_kept = target};
  const std::span<const uint32_t> ids = kept.row_ids(t);
  if (!ids.empty()) return {.cut = {}, .ids = ids, .always_kept = target};
  const double log_sum_exp = static_cast<double>(all.max) + log_double(all.sum);
  return {.cut = row_cut_of(kept.threshold(t), log_sum_exp), .ids = {}, .always_kept = target};
}

// Throws NonFiniteError.
RowStatistics row_statistics(const char* op, int64_t t, const LogitsRow& row,
                             const KeptTokensView& kept, int32_t target) {
  const SoftmaxStatistics all = softmax_row_statistics(op, t, row);
  const KeptSet set = kept_set(kept, t, target, all);
  const double sum = set.keeps_everything() ? all.sum : softmax_row_sum(row, all.max, set);
  return {{all.max, all.sum, sum}, set};
}

RowSums stored_sums(const Tensor& sums, int64_t t) {
  RowSums row;
  std::memcpy(&row, sums.data<uint8_t>() + t * kRowSumsBytes, sizeof(row));
  return row;
}

// What the gradients of a row are made of.
struct RowGradient {
  RowSums sums;
  KeptSet kept;
  float dprocessed;
  float dunfiltered;
};

// inv_temperature * (dprocessed (onehot - p_kept) + dunfiltered (onehot - p_all)); `out` may be the
// row's logits.
template <typename A>
void backward_row(A* out, const LogitsRow& row, const RowGradient& gradient) {
  const auto factor = [&](float value, double sum) {
    return static_cast<float>(-row.inv_temperature * value / sum);
  };
  const float kept_factor = factor(gradient.dprocessed, gradient.sums.kept);
  const float all_factor = factor(gradient.dunfiltered, gradient.sums.all);
  const int64_t target = gradient.kept.always_kept;
  for (int64_t begin = 0; begin < row.size; begin += kSoftmaxBlock) {
    const int64_t count = std::min(kSoftmaxBlock, row.size - begin);
    std::array<float, kSoftmaxBlock> kept_weights;
    std::array<float, kSoftmaxBlock> all_weights;
    softmax_weights(kept_weights.data(), row, gradient.sums.max, gradient.kept, begin, count);
    softmax_weights(all_weights.data(), row, gradient.sums.max, {}, begin, count);
    for (int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<size_t>(i);
      kept_weights[index] =
          std::fma(kept_factor, kept_weights[index], all_factor * all_weights[index]);
    }
    if (target >= begin && target < begin + count) {
      kept_weights[static_cast<size_t>(target - begin)] +=
          row.inv_temperature * (gradient.dprocessed + gradient.dunfiltered);
    }
    for (int64_t i = 0; i < count; ++i) {
      out[begin + i] = static_cast<A>(kept_weights[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace

void filter_tokens(KeptTokens& kept, const Tensor& logits, const SamplingFilter& filter,
                   OpContext& ctx) {
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const LogitsRow row = row_of(logits, t, filter.inv_temperature());
    if (ctx.device.is_rehearsal) {
      filter_row(row, 0.0f, filter, ctx.workspace);
      continue;
    }
    const SoftmaxStatistics all = softmax_row_statistics("filter_tokens", t, row);
    append_kept(kept, row, filter_row(row, all.max, filter, ctx.workspace), all,
                filter.max_kept_ids);
  }
}

void token_logprobs(const TokenLogprobs& out, const Tensor& logits, const Tensor& targets,
                    const KeptTokensView& kept, float inv_temperature) {
  const char* op = "token_logprobs";
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const LogitsRow row = row_of(logits, t, inv_temperature);
    const int32_t target = target_of(op, targets, t, row.size);
    const RowSums sums = row_statistics(op, t, row, kept, target).sums;
    out.unfiltered.data<float>()[t] = softmax_logprob(row, target, {sums.max, sums.all});
    out.processed.data<float>()[t] = softmax_logprob(row, target, {sums.max, sums.kept});
    if (out.sums.is_absent()) continue;
    std::memcpy(out.sums.data<uint8_t>() + t * kRowSumsBytes, &sums, sizeof(sums));
  }
}

template <typename A>
void token_logprobs_backward(const Tensor& dlogits, const Tensor& logits,
                             const LogprobGradients& gradients, const Tensor& targets,
                             const KeptTokensView& kept, float inv_temperature) {
  const char* op = "token_logprobs_backward";
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const LogitsRow row = row_of(logits, t, inv_temperature);
    const int32_t target = target_of(op, targets, t, row.size);
    const float dprocessed = gradients.dprocessed.data<float>()[t];
    const float dunfiltered =
        gradients.dunfiltered.is_absent() ? 0.0f : gradients.dunfiltered.data<float>()[t];
    A* out = dlogits.data<A>() + t * row.size;
    if (dprocessed == 0.0f && dunfiltered == 0.0f) {
      std::fill_n(out, row.size, A{});
      continue;
    }
    RowStatistics statistics{};
    if (gradients.sums.is_absent()) {
      statistics = row_statistics(op, t, row, kept, target);
    } else {
      statistics.sums = stored_sums(gradients.sums, t);
      statistics.kept = kept_set(kept, t, target, {statistics.sums.max, statistics.sums.all});
    }
    backward_row(out, row, {statistics.sums, statistics.kept, dprocessed, dunfiltered});
  }
}

template void token_logprobs_backward<float>(const Tensor&, const Tensor&, const LogprobGradients&,
                                             const Tensor&, const KeptTokensView&, float);
template void token_logprobs_backward<Bfloat16>(const Tensor&, const Tensor&,
                                                const LogprobGradients&, const Tensor&,
                                                const KeptTokensView&, float);

}  // namespace grpo::ops::cpu
