#include "rl/loop/step_metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>

namespace grpo::rl {

void TokenAgreement::add(const std::vector<float>& training, const std::vector<float>& generation) {
  CHECK(training.size() == generation.size(), "{} training values for {} generated tokens",
        training.size(), generation.size());
  for (size_t i = 0; i < training.size(); ++i) {
    sum_exp_abs +=
        std::exp(std::fabs(static_cast<double>(training[i]) - static_cast<double>(generation[i])));
    ++num_checked;
    if (std::bit_cast<uint32_t>(training[i]) != std::bit_cast<uint32_t>(generation[i])) {
      ++num_mismatched;
    }
  }
}

namespace {

double mean_of(size_t count, const std::function<double(size_t)>& value) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += value(i);
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

// Population standard deviation.
double std_of(size_t count, const std::function<double(size_t)>& value) {
  const double mean = mean_of(count, value);
  return std::sqrt(mean_of(count, [&](size_t i) { return (value(i) - mean) * (value(i) - mean); }));
}

double share_of_zero_std_groups(const StepRecord& record) {
  std::map<int64_t, std::pair<double, double>> range;
  for (const RolloutSequence& s : record.sequences) {
    const auto [it, is_new] = range.try_emplace(s.group, s.reward, s.reward);
    if (!is_new) {
      it->second.first = std::min(it->second.first, s.reward);
      it->second.second = std::max(it->second.second, s.reward);
    }
  }
  double equal = 0;
  for (const auto& [group, bounds] : range) equal += bounds.first == bounds.second ? 1 : 0;
  return range.empty() ? 0 : equal / static_cast<double>(range.size());
}

void add_advantage_metrics(MetricSet& metrics, const StepRecord& record) {
  const std::vector<double>& a = record.advantages.advantage;
  const std::vector<double>& b = record.advantages.baseline;
  metrics.set("train/advantages/mean", mean_of(a.size(), [&](size_t i) { return a[i]; }));
  metrics.set("train/advantages/min", *std::min_element(a.begin(), a.end()));
  metrics.set("train/advantages/max", *std::max_element(a.begin(), a.end()));
  const double pct_0 = mean_of(b.size(), [&](size_t i) { return b[i] == 0.0 ? 1.0 : 0.0; });
  const double pct_1 = mean_of(b.size(), [&](size_t i) { return b[i] == 1.0 ? 1.0 : 0.0; });
  metrics.set("train/baseline_reward/pct_0", pct_0);
  metrics.set("train/baseline_reward/pct_1", pct_1);
  metrics.set("train/baseline_reward/pct_mixed",
              mean_of(b.size(), [&](size_t i) { return b[i] != 0.0 && b[i] != 1.0 ? 1.0 : 0.0; }));
  metrics.set("train/frac_reward_zero_std", share_of_zero_std_groups(record));
}

}  // namespace

void add_rollout_metrics(MetricSet& metrics, const StepRecord& record,
                         const std::vector<std::string>& reward_names) {
  const std::vector<RolloutSequence>& s = record.sequences;
  metrics.set("train/reward", mean_of(s.size(), [&](size_t i) { return s[i].reward; }));
  for (size_t k = 0; k < reward_names.size(); ++k) {
    const auto component = [&](size_t i) { return s[i].reward_components[k]; };
    metrics.set("train/rewards/" + reward_names[k] + "/mean", mean_of(s.size(), component));
    metrics.set("train/rewards/" + reward_names[k] + "/std", std_of(s.size(), component));
  }
  add_advantage_metrics(metrics, record);
  const auto prompt_length = [&](size_t i) {
    return static_cast<double>(s[i].prompt_tokens.size());
  };
  const auto gen_length = [&](size_t i) {
    return static_cast<double>(s[i].response_tokens.size());
  };
  const auto truncated = [&](size_t i) {
    return s[i].finish_reason == generation::FinishReason::kLength ? 1.0 : 0.0;
  };
  double longest = 0;
  double total = 0;
  double valid = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    longest = std::max(longest, gen_length(i));
    total += static_cast<double>(s[i].length());
    valid += gen_length(i);
  }
  metrics.set("train/global_valid_seqs", static_cast<double>(s.size()));
  metrics.set("train/global_valid_toks", valid);
  metrics.set("train/mean_prompt_length", mean_of(s.size(), prompt_length));
  metrics.set("train/total_num_tokens", total);
  metrics.set("train/mean_gen_tokens_per_sample", mean_of(s.size(), gen_length));
  metrics.set("train/max_gen_tokens_per_sample", longest);
  metrics.set("train/truncation_rate", mean_of(s.size(), truncated));
  metrics.set("train/natural_termination_rate",
              mean_of(s.size(), [&](size_t i) { return 1.0 - truncated(i); }));
}

void add_training_metrics(MetricSet& metrics, const StepRecord& record) {
  const std::vector<UpdateResult>& updates = record.updates;
  // Updates of a step have equally many sequences; token means weigh by their tokens.
  double tokens = 0;
  for (const UpdateResult& update : updates) tokens += update.counts.valid_tokens;
  const auto token_mean = [&](double LossSums::*member) {
    if (updates.size() == 1) return updates[0].averages.*member;
    double sum = 0;
    for (const UpdateResult& u : updates) sum += u.averages.*member * u.counts.valid_tokens;
    return tokens == 0 ? 0 : sum / tokens;
  };
  const auto update_mean = [&](const std::function<double(const UpdateResult&)>& value) {
    return mean_of(updates.size(), [&](size_t i) { return value(updates[i]); });
  };
  const auto extreme = [&](double LossSums::*member, auto better) {
    double best = updates[0].averages.*member;
    for (const UpdateResult& u : updates) {
      if (better(u.averages.*member, best)) best = u.averages.*member;
    }
    return best;
  };
  metrics.set("train/loss", update_mean([](const UpdateResult& u) { return u.averages.loss; }));
  metrics.set("train/grad_norm", update_mean([](const UpdateResult& u) { return u.grad_norm; }));
  metrics.set("train/lr", record.learning_rate);
  metrics.set("train/kl_penalty", token_mean(&LossSums::kl_penalty));
  metrics.set("train/probs_ratio", token_mean(&LossSums::probs_ratio));
  metrics.set("train/probs_ratio_min", extreme(&LossSums::probs_ratio_min, std::less<>()));
  metrics.set("train/probs_ratio_max", extreme(&LossSums::probs_ratio_max, std::greater<>()));
  metrics.set("train/probs_ratio_clamped", token_mean(&LossSums::probs_ratio_clamped));
  metrics.set("train/probs_ratio_clamped_min",
              extreme(&LossSums::probs_ratio_clamped_min, std::less<>()));
  metrics.set("train/probs_ratio_clamped_max",
              extreme(&LossSums::probs_ratio_clamped_max, std::greater<>()));
  metrics.set("train/clip_ratio/low", token_mean(&LossSums::clip_ratio_low));
  metrics.set("train/clip_ratio/high", token_mean(&LossSums::clip_ratio_high));
  metrics.set("train/token_mult_prob_error", record.agreement.token_mult_prob_error());
  metrics.set("train/mismatch_count", static_cast<double>(record.agreement.num_mismatched));
  metrics.set("train/mismatch_tokens_checked", static_cast<double>(record.agreement.num_checked));
  metrics.set("train/cut_mismatch_count", static_cast<double>(record.agreement.num_sets_differing));
  metrics.set("train/gen_kl_error", token_mean(&LossSums::gen_kl_error));
  metrics.set("train/policy_kl_error", token_mean(&LossSums::policy_kl_error));
  metrics.set("train/js_divergence_error", token_mean(&LossSums::js_divergence_error));
  metrics.set("train/sampling_importance_ratio", token_mean(&LossSums::sampling_importance_ratio));
  metrics.set("train/is_oob_ratio", token_mean(&LossSums::is_oob_ratio));
  metrics.set("train/approx_entropy", token_mean(&LossSums::approx_entropy));
  double samples = 0;
  for (const UpdateResult& u : updates) samples += u.averages.num_valid_samples;
  metrics.set("train/num_valid_samples", samples);
}

void add_system_metrics(MetricSet& metrics, const StepRecord& record, int world_size) {
  metrics.set("refit/bytes", static_cast<double>(record.refit.bytes));
  metrics.set("refit/remote_bytes", static_cast<double>(record.refit.remote_bytes));
  metrics.set("refit/seconds", record.refit.seconds);
  metrics.set("refit/changed_elements", static_cast<double>(record.refit.changed_elements));
  metrics.set("refit/fingerprint_ok", record.refit.fingerprint_ok() ? 1.0 : 0.0);
  // A double holds 53 bits exactly; these are the fingerprint's low ones.
  metrics.set("refit/fingerprint", static_cast<double>(record.refit.destination_fingerprint &
                                                       ((uint64_t{1} << 53) - 1)));
  const StepTimes& t = record.times;
  metrics.set("timing/train/total_step_time", t.total);
  metrics.set("timing/train/prepare_for_generation/total", t.prepare_for_generation);
  metrics.set("timing/train/prepare_for_generation/transfer_and_update_weights",
              t.transfer_and_update_weights);
  metrics.set("timing/train/generation", t.generation);
  metrics.set("timing/train/reward_calculation", t.reward_calculation);
  metrics.set("timing/train/policy_and_reference_logprobs", t.policy_and_reference_logprobs);
  metrics.set("timing/train/policy_training", t.policy_training);
  const double tokens = *metrics.get("train/total_num_tokens");
  const double generated = *metrics.get("train/global_valid_toks");
  const double ranks = world_size;
  metrics.set("performance/tokens_per_sec_per_gpu", tokens / t.total / ranks);
  metrics.set("performance/generation_tokens_per_sec_per_gpu", generated / t.generation / ranks);
  metrics.set("performance/policy_training_tokens_per_sec_per_gpu",
              tokens / t.policy_training / ranks);
  metrics.set("performance/samples_per_sec",
              static_cast<double>(record.sequences.size()) / t.total);
}

void add_gtp_metrics(MetricSet& metrics, const parallel::GtpCounters& gtp) {
  metrics.set("gtp/gathers", static_cast<double>(gtp.gathers));
  metrics.set("gtp/gathered_bytes", static_cast<double>(gtp.gathered_bytes));
  metrics.set("gtp/reduce_scattered_bytes", static_cast<double>(gtp.reduce_scattered_bytes));
}

}  // namespace grpo::rl
