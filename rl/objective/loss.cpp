#include "rl/objective/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/core/errors.h"
#include "rl/objective/loss_terms.h"

namespace grpo::rl {

namespace {

double divide(double value, double count, double epsilon) {
  const double denominator = count + epsilon;
  return denominator > 0 ? value / denominator : 0.0;
}

bool adds_kl(const LossConfig& config) {
  return config.reference_policy_kl_penalty > 0 && !config.use_kl_in_reward;
}

void check_sequence(const LossConfig& config, const LossSequence& sequence,
                    const LossGradients& gradients) {
  const size_t length = sequence.current.size();
  const auto matches = [&](size_t size, bool may_be_empty) {
    return size == length || (may_be_empty && size == 0);
  };
  CHECK(matches(sequence.current_unfiltered.size(), true));
  CHECK(matches(sequence.previous.size(), config.force_on_policy_ratio));
  CHECK(matches(sequence.generation.size(), false));
  CHECK(matches(sequence.reference.size(), !adds_kl(config)));
  CHECK(matches(sequence.token_mask.size(), false));
  CHECK(matches(sequence.advantages.size(), false));
  CHECK(matches(gradients.current.size(), true));
  CHECK(matches(gradients.current_unfiltered.size(), true));
  CHECK(sequence.sequence_mask == 0.0 || sequence.sequence_mask == 1.0, "sequence_mask {}",
        sequence.sequence_mask);
}

enum class Wanted : bool { kGradients, kAll };

// Evaluates one valid sequence (s = 1) into gradients, where there is room for them, and sums,
// which are incomplete where only gradients are wanted.
class SequenceLoss {
 public:
  SequenceLoss(const LossConfig& config, const LossSequence& sequence, const LossCounts& counts,
               const LossGradients& gradients, Wanted wanted);
  LossSums evaluate();

 private:
  double previous(size_t t) const {
    return config_.force_on_policy_ratio ? sequence_.current[t] : sequence_.previous[t];
  }
  double unfiltered(size_t t) const {
    return sequence_.current_unfiltered.empty() ? sequence_.current[t]
                                                : sequence_.current_unfiltered[t];
  }
  ImportanceWeight importance_weight(size_t t) const;
  void measure_sequence();
  void add_actor(size_t t);
  void add_sequence_ratio_gradient();
  void add_kl(size_t t);
  void add_positive_nll(size_t t);
  void add_mismatch_metrics(size_t t);
  void add_ratio_metrics(double ratio, double clipped);

  const LossConfig& config_;
  const LossSequence& sequence_;
  const LossCounts& counts_;
  const LossGradients& gradients_;
  const KlEstimator estimator_;
  bool wants_gradients_;
  bool wants_sums_;
  std::span<double> kl_gradient_;  // where d loss / d c_u goes

  double num_tokens_ = 0;                  // sum of m
  double loss_scale_ = 0;                  // of a token's term in LossSums::loss
  double gradient_scale_ = 0;              // of a token's term in the batch's loss
  double mean_log_ratio_ = 0;              // masked mean of c - p
  double sequence_importance_weight_ = 0;  // exp(sum of p - g), finite or 0
  bool sequence_masked_ = false;           // by seq-mask-tis
  double sequence_ratio_gradient_ = 0;     // d loss / d (sequence ratio)
  LossSums sums_;
};

SequenceLoss::SequenceLoss(const LossConfig& config, const LossSequence& sequence,
                           const LossCounts& counts, const LossGradients& gradients, Wanted wanted)
    : config_(config),
      sequence_(sequence),
      counts_(counts),
      gradients_(gradients),
      estimator_(kl_estimator(config.reference_policy_kl_type)),
      wants_gradients_(!gradients.current.empty()),
      wants_sums_(wanted == Wanted::kAll),
      kl_gradient_(gradients.current_unfiltered.empty() ? gradients.current
                                                        : gradients.current_unfiltered) {}

void SequenceLoss::measure_sequence() {
  double sum_log_ratio = 0;
  double sum_log_weight = 0;
  for (size_t t = 0; t < sequence_.current.size(); ++t) {
    if (sequence_.token_mask[t] == 0) continue;
    num_tokens_ += 1;
    sum_log_ratio += sequence_.current[t] - previous(t);
    sum_log_weight += previous(t) - sequence_.generation[t];
  }
  const double epsilon = counts_.denominator_epsilon;
  if (config_.token_level_loss) {
    loss_scale_ = 1.0;
    gradient_scale_ = divide(1.0, counts_.valid_tokens, epsilon);
  } else {
    loss_scale_ = divide(1.0, num_tokens_, epsilon);
    gradient_scale_ = divide(loss_scale_, counts_.valid_sequences, epsilon);
  }
  mean_log_ratio_ = divide(sum_log_ratio, num_tokens_, epsilon);
  sequence_importance_weight_ = std::exp(sum_log_weight);
  if (!std::isfinite(sequence_importance_weight_)) sequence_importance_weight_ = 0.0;
  if (config_.truncated_importance_sampling_type == "seq-mask-tis") {
    const double mean_ratio = std::exp(divide(sum_log_weight, num_tokens_, epsilon));
    sequence_masked_ = !is_importance_ratio_in_bounds(config_, mean_ratio);
  }
}

ImportanceWeight SequenceLoss::importance_weight(size_t t) const {
  double weight = sequence_importance_weight_;
  if (!config_.sequence_level_importance_ratios) {
    weight = std::exp(previous(t) - sequence_.generation[t]);
    if (!std::isfinite(weight)) weight = 0.0;
  }
  if (sequence_masked_) return {0.0, true};
  return truncate_importance_weight(config_, weight);
}

void SequenceLoss::add_ratio_metrics(double ratio, double clipped) {
  sums_.probs_ratio += ratio;
  sums_.probs_ratio_clamped += clipped;
  sums_.probs_ratio_min = std::min(sums_.probs_ratio_min, ratio);
  sums_.probs_ratio_max = std::max(sums_.probs_ratio_max, ratio);
  sums_.probs_ratio_clamped_min = std::min(sums_.probs_ratio_clamped_min, clipped);
  sums_.probs_ratio_clamped_max = std::max(sums_.probs_ratio_clamped_max, clipped);
  sums_.clip_ratio_low += ratio < clipped ? 1.0 : 0.0;
  sums_.clip_ratio_high += ratio > clipped ? 1.0 : 0.0;
}

void SequenceLoss::add_actor(size_t t) {
  const double current = sequence_.current[t];
  const double advantage = sequence_.advantages[t];
  const bool per_sequence = config_.sequence_level_importance_ratios;
  double ratio = current;
  double clipped = current;
  Differentiated term{-advantage * current, 0.0};  // derivative in the ratio
  double direct_gradient = -advantage;             // of the term in c, beside the ratio's
  if (!config_.disable_ppo_ratio) {
    ratio = std::exp(per_sequence ? mean_log_ratio_ : current - previous(t));
    clipped = std::clamp(ratio, 1.0 - config_.ratio_clip_min, 1.0 + config_.ratio_clip_max);
    term = clipped_surrogate(config_, advantage, ratio);
    direct_gradient = 0.0;
  }
  if (config_.use_cispo) {
    term = {-advantage * clipped * current, 0.0};
    direct_gradient = -advantage * clipped;
  }
  double weight = 1.0;
  if (wants_sums_ || config_.use_importance_sampling_correction) {
    const ImportanceWeight importance = importance_weight(t);
    if (config_.use_importance_sampling_correction) weight = importance.value;
    add_ratio_metrics(ratio, clipped);
    if (!per_sequence) sums_.sampling_importance_ratio += importance.value;
    if (importance.out_of_bounds && !sequence_masked_) sums_.is_oob_ratio += 1.0;
  }
  sums_.loss += loss_scale_ * weight * term.value;
  if (!wants_gradients_) return;
  const double scale = gradient_scale_ * weight;
  if (per_sequence)
    sequence_ratio_gradient_ += scale * term.derivative;
  else
    direct_gradient += term.derivative * ratio;
  gradients_.current[t] += scale * direct_gradient;
}

// The sequence's ratio is exp(mean of c - p): every token moves it by ratio / (count + epsilon).
void SequenceLoss::add_sequence_ratio_gradient() {
  if (!wants_gradients_ || !config_.sequence_level_importance_ratios) return;
  const double gradient = divide(sequence_ratio_gradient_ * std::exp(mean_log_ratio_), num_tokens_,
                                 counts_.denominator_epsilon);
  for (size_t t = 0; t < sequence_.current.size(); ++t)
    if (sequence_.token_mask[t] != 0) gradients_.current[t] += gradient;
}

void SequenceLoss::add_kl(size_t t) {
  const Differentiated kl =
      kl_penalty_term(config_, unfiltered(t), sequence_.generation[t], sequence_.reference[t]);
  const double penalty = config_.reference_policy_kl_penalty;
  sums_.kl_penalty += loss_scale_ * kl.value;
  sums_.loss += penalty * loss_scale_ * kl.value;
  if (wants_gradients_) kl_gradient_[t] += penalty * gradient_scale_ * kl.derivative;
}

void SequenceLoss::add_positive_nll(size_t t) {
  sums_.positive_nll_loss -= sequence_.current[t];
  if (wants_gradients_)
    gradients_.current[t] -= config_.positive_example_nll_weight *
                             divide(1.0, counts_.positive_tokens, counts_.denominator_epsilon);
}

void SequenceLoss::add_mismatch_metrics(size_t t) {
  const double p = previous(t);
  const double g = sequence_.generation[t];
  const double c = sequence_.current[t];
  sums_.token_mult_prob_error += std::exp(std::abs(g - p));
  sums_.gen_kl_error += kl_from_log_ratio(estimator_, p - g).value;
  sums_.policy_kl_error += kl_from_log_ratio(estimator_, g - p).value;
  sums_.js_divergence_error += js_divergence(p, g);
  sums_.approx_entropy -= std::exp(c - g) * c;
}

LossSums SequenceLoss::evaluate() {
  measure_sequence();
  sums_.num_valid_samples = 1.0;
  if (sequence_masked_) sums_.is_oob_ratio = 1.0;
  if (config_.sequence_level_importance_ratios) {
    const double weight = sequence_masked_ ? 0.0 : sequence_importance_weight_;
    sums_.sampling_importance_ratio = truncate_importance_weight(config_, weight).value;
  }
  const bool has_positive_nll = config_.positive_example_nll_weight > 0 && sequence_.reward > 0;
  for (size_t t = 0; t < sequence_.current.size(); ++t) {
    if (sequence_.token_mask[t] == 0) continue;
    add_actor(t);
    if (adds_kl(config_)) add_kl(t);
    if (has_positive_nll) add_positive_nll(t);
    if (wants_sums_) add_mismatch_metrics(t);
  }
  add_sequence_ratio_gradient();
  return sums_;
}

}  // namespace

namespace {

LossSums evaluate(const LossConfig& config, const LossSequence& sequence, const LossCounts& counts,
                  const LossGradients& gradients, Wanted wanted) {
  check_sequence(config, sequence, gradients);
  std::fill(gradients.current.begin(), gradients.current.end(), 0.0);
  std::fill(gradients.current_unfiltered.begin(), gradients.current_unfiltered.end(), 0.0);
  if (sequence.sequence_mask == 0.0) return LossSums();
  return SequenceLoss(config, sequence, counts, gradients, wanted).evaluate();
}

}  // namespace

LossSums evaluate_loss(const LossConfig& config, const LossSequence& sequence,
                       const LossCounts& counts, const LossGradients& gradients) {
  return evaluate(config, sequence, counts, gradients, Wanted::kAll);
}

void evaluate_loss_gradients(const LossConfig& config, const LossSequence& sequence,
                             const LossCounts& counts, const LossGradients& gradients) {
  evaluate(config, sequence, counts, gradients, Wanted::kGradients);
}

}  // namespace grpo::rl
