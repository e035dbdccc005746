#include <cmath>

#include "model/core/config_check.h"
#include "rl/objective/loss.h"

namespace grpo::rl {

void LossConfig::visit(ConfigVisitor& visitor) {
  visitor.field("ratio_clip_min", ratio_clip_min, "the ratio is clipped below at 1 minus this");
  visitor.field("ratio_clip_max", ratio_clip_max, "the ratio is clipped above at 1 plus this");
  visitor.field("ratio_clip_c", ratio_clip_c,
                "dual clip: bounds the loss of negative advantages at this ratio; null for none");
  visitor.field("reference_policy_kl_penalty", reference_policy_kl_penalty,
                "weight of the KL term; 0 needs no reference model");
  visitor.choice("reference_policy_kl_type", reference_policy_kl_type, {"k1", "k2", "k3"},
                 "KL estimator, of the penalty and of the KL metrics");
  visitor.field("kl_input_clamp_value", kl_input_clamp_value,
                "bound on the log-ratio inside the KL term; null for none");
  visitor.field("kl_output_clamp_value", kl_output_clamp_value,
                "bound on a token's KL term; null for none");
  visitor.field("use_kl_in_reward", use_kl_in_reward,
                "the KL penalty is part of the advantages, not of the loss");
  visitor.field("use_on_policy_kl_approximation", use_on_policy_kl_approximation,
                "weights a token's KL term by its probability now over that at generation");
  visitor.field("use_importance_sampling_correction", use_importance_sampling_correction,
                "weights a token by its training probability over that at generation");
  visitor.field("truncated_importance_sampling_type", truncated_importance_sampling_type,
                "what happens to weights out of bounds: tis, icepop, seq-mask-tis; null for none");
  visitor.field("truncated_importance_sampling_ratio", truncated_importance_sampling_ratio,
                "upper bound of the importance weight");
  visitor.field("truncated_importance_sampling_ratio_min", truncated_importance_sampling_ratio_min,
                "lower bound of the importance weight; null for 0");
  visitor.field("token_level_loss", token_level_loss,
                "mean over all tokens; false: mean over sequences of their token means");
  visitor.field("sequence_level_importance_ratios", sequence_level_importance_ratios,
                "one ratio a sequence, the geometric mean of its tokens' (GSPO)");
  visitor.field("disable_ppo_ratio", disable_ppo_ratio,
                "REINFORCE: the log-probability takes the ratio's place");
  visitor.field("force_on_policy_ratio", force_on_policy_ratio,
                "the ratio is 1 with the gradient of the log-probability");
  visitor.field("use_cispo", use_cispo,
                "the clipped ratio is a constant weight on the log-probability (CISPO)");
  visitor.field("positive_example_nll_weight", positive_example_nll_weight,
                "weight of the likelihood term on samples with positive reward");
}

namespace {

void check_importance_sampling(const LossConfig& config, const ConfigVisitor& visitor) {
  const auto& type = config.truncated_importance_sampling_type;
  const auto& upper = config.truncated_importance_sampling_ratio;
  const auto& lower = config.truncated_importance_sampling_ratio_min;
  if (!type) {
    check_config(
        !upper, visitor, "truncated_importance_sampling_ratio",
        "has no effect without truncated_importance_sampling_type: tis, icepop or seq-mask-tis");
    check_config(
        !lower, visitor, "truncated_importance_sampling_ratio_min",
        "has no effect without truncated_importance_sampling_type: tis, icepop or seq-mask-tis");
    return;
  }
  check_config(*type == "tis" || *type == "icepop" || *type == "seq-mask-tis", visitor,
               "truncated_importance_sampling_type",
               fmt::format("\"{}\" is not one of tis, icepop, seq-mask-tis, null", *type));
  check_config(config.use_importance_sampling_correction, visitor,
               "truncated_importance_sampling_type",
               fmt::format("\"{}\" needs use_importance_sampling_correction: true", *type));
  check_config(
      upper.has_value(), visitor, "truncated_importance_sampling_ratio",
      fmt::format("truncated_importance_sampling_type \"{}\" needs a bound above 0", *type));
  check_config(*upper > 0 && std::isfinite(*upper), visitor, "truncated_importance_sampling_ratio",
               fmt::format("{} is not above 0", *upper));
  check_config(!lower || (*lower >= 0 && *lower <= *upper), visitor,
               "truncated_importance_sampling_ratio_min",
               fmt::format("{} is not between 0 and truncated_importance_sampling_ratio ({})",
                           lower.value_or(0), *upper));
}

}  // namespace

void LossConfig::validate(const ConfigVisitor& visitor) const {
  const auto check_not_negative = [&](std::string_view key, double value) {
    check_config(value >= 0 && std::isfinite(value), visitor, key,
                 fmt::format("{} is not a number of at least 0", value));
  };
  const auto check_positive = [&](std::string_view key, const std::optional<double>& value) {
    check_config(!value || (*value > 0 && std::isfinite(*value)), visitor, key,
                 fmt::format("{} is neither above 0 nor null", value.value_or(0)));
  };
  check_not_negative("ratio_clip_min", ratio_clip_min);
  check_not_negative("ratio_clip_max", ratio_clip_max);
  check_config(!ratio_clip_c || (*ratio_clip_c > 1 && std::isfinite(*ratio_clip_c)), visitor,
               "ratio_clip_c",
               fmt::format("{} is neither above 1 nor null", ratio_clip_c.value_or(0)));
  check_not_negative("reference_policy_kl_penalty", reference_policy_kl_penalty);
  check_positive("kl_input_clamp_value", kl_input_clamp_value);
  check_positive("kl_output_clamp_value", kl_output_clamp_value);
  check_not_negative("positive_example_nll_weight", positive_example_nll_weight);
  check_importance_sampling(*this, visitor);
  check_config(!sequence_level_importance_ratios || !token_level_loss, visitor,
               "sequence_level_importance_ratios", "true needs token_level_loss: false");
  check_config(!use_cispo || !disable_ppo_ratio, visitor, "use_cispo",
               "true needs disable_ppo_ratio: false, since it weights by the ratio");
}

bool LossConfig::is_token_local() const {
  return token_level_loss && !sequence_level_importance_ratios &&
         truncated_importance_sampling_type != "seq-mask-tis";
}

}  // namespace grpo::rl
