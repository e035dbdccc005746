#include "rl/loop/policy_loss.h"

#include <algorithm>
#include <utility>

#include "model/core/errors.h"

namespace grpo::rl {

namespace {

std::vector<double> to_double(std::span<const float> values) {
  return std::vector<double>(values.begin(), values.end());
}

}  // namespace

PolicyLoss::PolicyLoss(const LossConfig& config, const LossCounts& counts,
                       const model::PackedBatch& batch,
                       std::vector<const RolloutSequence*> sequences,
                       std::vector<const SequenceSignals*> signals)
    : config_(config),
      counts_(counts),
      batch_(batch),
      sequences_(std::move(sequences)),
      signals_(std::move(signals)),
      current_(static_cast<size_t>(batch.num_predicted())),
      unfiltered_(current_.size()) {
  CHECK(sequences_.size() == signals_.size());
}

std::span<const float> PolicyLoss::logprobs(size_t s) const {
  const auto begin = static_cast<size_t>(batch_.predicted_offsets[s]);
  const auto end = static_cast<size_t>(batch_.predicted_offsets[s + 1]);
  return std::span(current_).subspan(begin, end - begin);
}

template <typename Evaluate>
auto PolicyLoss::with_rows(size_t s, int64_t begin, int64_t end, const Evaluate& evaluate) const {
  const auto first = static_cast<size_t>(begin - batch_.predicted_offsets[s]);
  const auto count = static_cast<size_t>(end - begin);
  const RolloutSequence& sequence = *sequences_[s];
  const SequenceSignals& signals = *signals_[s];
  const auto part = [&](const std::vector<float>& values, size_t offset) {
    return to_double(std::span(values).subspan(offset, count));
  };
  const std::vector<double> current = part(current_, static_cast<size_t>(begin));
  const std::vector<double> unfiltered = part(unfiltered_, static_cast<size_t>(begin));
  const std::vector<double> generation = part(sequence.generation_logprobs, first);
  const std::vector<double> previous =
      signals.previous_logprobs.empty() ? current : part(signals.previous_logprobs, first);
  const std::vector<double> reference = signals.reference_logprobs.empty()
                                            ? std::vector<double>()
                                            : part(signals.reference_logprobs, first);
  const std::vector<double> advantages(count, signals.advantage);
  const std::vector<uint8_t> mask(count, 1);
  return evaluate(LossSequence{.current = current,
                               .current_unfiltered = unfiltered,
                               .previous = previous,
                               .generation = generation,
                               .reference = reference,
                               .token_mask = mask,
                               .advantages = advantages,
                               .sequence_mask = 1.0,
                               .reward = sequence.reward});
}

void PolicyLoss::evaluate(int64_t begin, int64_t end, const model::LogprobValues& logprobs,
                          const model::LogprobGradientValues& gradients) {
  const auto count = static_cast<size_t>(end - begin);
  std::copy(logprobs.processed.begin(), logprobs.processed.end(), current_.begin() + begin);
  std::copy(logprobs.unfiltered.begin(), logprobs.unfiltered.end(), unfiltered_.begin() + begin);
  std::vector<double> d_current(count);
  std::vector<double> d_unfiltered(count);
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const int64_t first = std::max(begin, batch_.predicted_offsets[s]);
    const int64_t last = std::min(end, batch_.predicted_offsets[s + 1]);
    if (first >= last) continue;
    const auto offset = static_cast<size_t>(first - begin);
    const auto rows = static_cast<size_t>(last - first);
    with_rows(s, first, last, [&](const LossSequence& sequence) {
      evaluate_loss_gradients(
          config_, sequence, counts_,
          {.current = std::span(d_current).subspan(offset, rows),
           .current_unfiltered = std::span(d_unfiltered).subspan(offset, rows)});
    });
  }
  for (size_t i = 0; i < count; ++i) {
    gradients.dprocessed[i] = static_cast<float>(d_current[i]);
    gradients.dunfiltered[i] = static_cast<float>(d_unfiltered[i]);
  }
}

std::vector<LossSums> PolicyLoss::sequence_sums() const {
  std::vector<LossSums> sums;
  sums.reserve(sequences_.size());
  for (size_t s = 0; s < sequences_.size(); ++s) {
    sums.push_back(with_rows(s, batch_.predicted_offsets[s], batch_.predicted_offsets[s + 1],
                             [&](const LossSequence& sequence) {
                               return evaluate_loss(config_, sequence, counts_,
                                                    {.current = {}, .current_unfiltered = {}});
                             }));
  }
  return sums;
}

void NllLoss::evaluate(int64_t, int64_t, const model::LogprobValues& logprobs,
                       const model::LogprobGradientValues& gradients) {
  for (size_t i = 0; i < logprobs.processed.size(); ++i) {
    gradients.dprocessed[i] = static_cast<float>(-1.0 / num_tokens_);
    gradients.dunfiltered[i] = 0.0f;
  }
  logprobs_.insert(logprobs_.end(), logprobs.processed.begin(), logprobs.processed.end());
}

}  // namespace grpo::rl
