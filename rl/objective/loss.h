// The clipped policy-gradient loss of NeMo-RL with its KL term and metrics, in double.
// Definitions: README, "Loss"; every value follows from log-probabilities, masks and global counts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/core/config_visitor.h"

namespace grpo::rl {

struct LossConfig {
  double ratio_clip_min = 0.2;
  double ratio_clip_max = 0.2;
  std::optional<double> ratio_clip_c;  // dual clip for negative advantages
  double reference_policy_kl_penalty = 0.01;
  std::string reference_policy_kl_type = "k3";
  std::optional<double> kl_input_clamp_value = 20.0;
  std::optional<double> kl_output_clamp_value = 10.0;
  bool use_kl_in_reward = false;
  bool use_on_policy_kl_approximation = false;
  bool use_importance_sampling_correction = false;
  std::optional<std::string> truncated_importance_sampling_type;  // tis, icepop, seq-mask-tis
  std::optional<double> truncated_importance_sampling_ratio;
  std::optional<double> truncated_importance_sampling_ratio_min;
  bool token_level_loss = true;
  bool sequence_level_importance_ratios = false;
  bool disable_ppo_ratio = false;
  bool force_on_policy_ratio = false;
  bool use_cispo = false;
  double positive_example_nll_weight = 0.0;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
  // d loss / d logp of a token depends on that token alone (single-pass training).
  bool is_token_local() const;
};

// One sequence; entry t belongs to the t-th predicted token. All spans have the same length unless
// said.
struct LossSequence {
  std::span<const double> current;  // c, over the kept set
  std::span<const double>
      current_unfiltered;  // c_u; empty or the same span as current when nothing is filtered
  std::span<const double>
      previous;  // p; not read with force_on_policy_ratio, where it may be empty
  std::span<const double> generation;   // g
  std::span<const double> reference;    // r; empty without KL
  std::span<const uint8_t> token_mask;  // m: 1 for response tokens
  std::span<const double> advantages;   // A, a value a token
  double sequence_mask;                 // s: 1 or 0
  double reward;                        // only for positive_example_nll_weight
};

// Global counts over all data ranks, and the term added to denominators (0 in the product). A count
// of 0 with epsilon 0 makes what it divides 0.
struct LossCounts {
  double valid_tokens;
  double valid_sequences;
  double positive_tokens;  // valid tokens of sequences with reward > 0
  double denominator_epsilon;
};

// Sums of one sequence, not yet divided by a global count. Adding them over all sequences in a
// fixed order and dividing once, by average_loss, gives the batch's values: the same bits for every
// layout, and a mean of ones is exactly 1. Minima and maxima combine by min and max.
struct LossSums {
  double loss = 0;  // actor and KL; average_loss adds the positive-example term
  double kl_penalty = 0;
  double positive_nll_loss = 0;
  double probs_ratio = 0;
  double probs_ratio_clamped = 0;
  double token_mult_prob_error = 0;
  double gen_kl_error = 0;
  double policy_kl_error = 0;
  double js_divergence_error = 0;
  double sampling_importance_ratio = 0;
  double is_oob_ratio = 0;
  double approx_entropy = 0;
  double num_valid_samples = 0;
  double clip_ratio_low = 0;   // tokens whose ratio is below 1 - ratio_clip_min
  double clip_ratio_high = 0;  // and above 1 + ratio_clip_max
  double probs_ratio_min;      // +inf without a valid token
  double probs_ratio_max;      // -inf without a valid token
  double probs_ratio_clamped_min;
  double probs_ratio_clamped_max;

  LossSums();
  void add(const LossSums& other);
};

struct LossGradients {
  std::span<double> current;             // d loss / d c; empty when only the sums are wanted
  std::span<double> current_unfiltered;  // d loss / d c_u (the KL term); adds to `current` when
                                         // empty or the same span
};

// Loss of one sequence and its gradient, the latter divided by the counts. Gradients are
// overwritten. A token outside the mask contributes exactly 0 and may hold any value, NaN included.
// Thread-safe. For a config with is_token_local() a call on a part of a sequence's tokens gives
// that part's gradient, and sums whose total over the parts is the sequence's up to rounding, but
// for num_valid_samples (one a call).
LossSums evaluate_loss(const LossConfig& config, const LossSequence& sequence,
                       const LossCounts& counts, const LossGradients& gradients);

// The gradients alone, in less time.
void evaluate_loss_gradients(const LossConfig& config, const LossSequence& sequence,
                             const LossCounts& counts, const LossGradients& gradients);

// The batch's loss and metrics from the sum over all its sequences: means over valid tokens (or
// sequences, README "Loss"); clip_ratio_* become shares of the valid tokens. num_valid_samples,
// minima and maxima stay.
LossSums average_loss(const LossConfig& config, const LossSums& total, const LossCounts& counts);

}  // namespace grpo::rl
