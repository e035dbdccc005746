// PolicyLoss: the clipped loss of one micro-batch as the LM head sees it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/layers/lm_head.h"
#include "model/packed_batch.h"
#include "rl/loop/rollout.h"
#include "rl/objective/loss.h"

namespace grpo::rl {

// What training knows of one rollout sequence besides its tokens; all by response token.
struct SequenceSignals {
  double advantage = 0;
  std::vector<float>
      previous_logprobs;  // pre-update policy; empty when the loss forward itself supplies them
  std::vector<float> reference_logprobs;  // unfiltered; empty without KL
};

// Lives through one Transformer::train call.
class PolicyLoss : public model::TokenLoss {
 public:
  // `batch` was packed from `sequences`, in their order.
  PolicyLoss(const LossConfig& config, const LossCounts& counts, const model::PackedBatch& batch,
             std::vector<const RolloutSequence*> sequences,
             std::vector<const SequenceSignals*> signals);

  bool is_token_local() const override { return config_.is_token_local(); }
  void evaluate(int64_t begin, int64_t end, const model::LogprobValues& logprobs,
                const model::LogprobGradientValues& gradients) override;

  // After the pass: sums of each sequence over all of its tokens at once, so that they do not
  // depend on chunks.
  std::vector<LossSums> sequence_sums() const;
  // Processed log-probabilities of sequence s, from the training forward.
  std::span<const float> logprobs(size_t s) const;

 private:
  // Calls evaluate(sequence) for rows [begin, end) of the batch, all of sequence s.
  template <typename Evaluate>
  auto with_rows(size_t s, int64_t begin, int64_t end, const Evaluate& evaluate) const;

  const LossConfig& config_;
  LossCounts counts_;
  const model::PackedBatch& batch_;
  std::vector<const RolloutSequence*> sequences_;
  std::vector<const SequenceSignals*> signals_;
  std::vector<float> current_;     // [R]
  std::vector<float> unfiltered_;  // [R]
};

// The gradients of the targets' negative log-likelihood, summed and divided by `num_tokens`.
class NllLoss : public model::TokenLoss {
 public:
  explicit NllLoss(double num_tokens) : num_tokens_(num_tokens) {}

  bool is_token_local() const override { return true; }
  void evaluate(int64_t begin, int64_t end, const model::LogprobValues& logprobs,
                const model::LogprobGradientValues& gradients) override;
  // Of all rows, after the pass.
  const std::vector<float>& logprobs() const { return logprobs_; }

 private:
  double num_tokens_;
  std::vector<float> logprobs_;
};

}  // namespace grpo::rl
