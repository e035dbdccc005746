#include "tests/golden/clipped_loss_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "rl/objective/loss.h"
#include "tests/golden/json_config_reader.h"

namespace grpo::golden {

namespace {

using Rows = std::vector<std::vector<double>>;

constexpr const char* kKind = "clipped_pg_loss";
constexpr double kTolerance = 1e-12;
constexpr double kDenominatorEpsilon = 1e-8;  // the source adds it to every denominator

struct Inputs {
  Rows current, current_unfiltered, previous, generation, reference, mask, advantages;
  std::vector<double> sequence_mask, rewards;

  explicit Inputs(const nlohmann::json& inputs);
  size_t num_sequences() const { return current.size(); }
};

// Rows under a key; with `optional` and no such key, empty rows.
Rows rows_of(const nlohmann::json& inputs, const char* key, size_t num_rows, bool optional) {
  const bool absent = !inputs.contains(key) || inputs.at(key).is_null();
  if (optional && absent) return Rows(num_rows);
  Rows rows = inputs.at(key).get<Rows>();
  if (rows.size() != num_rows)
    throw std::runtime_error(std::string(key) + " has another number of sequences than cur");
  return rows;
}

Inputs::Inputs(const nlohmann::json& inputs) : current(inputs.at("cur").get<Rows>()) {
  const size_t count = current.size();
  current_unfiltered = rows_of(inputs, "cur_unfiltered", count, true);
  previous = rows_of(inputs, "prev", count, false);
  generation = rows_of(inputs, "gen", count, false);
  reference = rows_of(inputs, "ref", count, true);
  mask = rows_of(inputs, "mask", count, false);
  advantages = rows_of(inputs, "adv", count, false);
  sequence_mask = inputs.at("smask").get<std::vector<double>>();
  rewards = inputs.contains("rewards") ? inputs.at("rewards").get<std::vector<double>>()
                                       : std::vector<double>(count, 0.0);
  if (sequence_mask.size() != count || rewards.size() != count)
    throw std::runtime_error("smask or rewards have another number of sequences than cur");
}

double count_positive_tokens(const Inputs& inputs) {
  double count = 0;
  for (size_t i = 0; i < inputs.num_sequences(); ++i)
    if (inputs.sequence_mask[i] > 0 && inputs.rewards[i] > 0)
      for (const double m : inputs.mask[i]) count += m;
  return count;
}

struct Outcome {
  rl::LossSums average;
  Rows gradient, gradient_unfiltered;
};

Outcome evaluate(const rl::LossConfig& config, const Inputs& inputs, const rl::LossCounts& counts) {
  Outcome outcome{
      .average = {}, .gradient = inputs.current, .gradient_unfiltered = inputs.current_unfiltered};
  rl::LossSums total;
  for (size_t i = 0; i < inputs.num_sequences(); ++i) {
    const std::vector<uint8_t> mask(inputs.mask[i].begin(), inputs.mask[i].end());
    const rl::LossSequence sequence{.current = inputs.current[i],
                                    .current_unfiltered = inputs.current_unfiltered[i],
                                    .previous = inputs.previous[i],
                                    .generation = inputs.generation[i],
                                    .reference = inputs.reference[i],
                                    .token_mask = mask,
                                    .advantages = inputs.advantages[i],
                                    .sequence_mask = inputs.sequence_mask[i],
                                    .reward = inputs.rewards[i]};
    total.add(rl::evaluate_loss(config, sequence, counts,
                                {outcome.gradient[i], outcome.gradient_unfiltered[i]}));
  }
  outcome.average = rl::average_loss(config, total, counts);
  return outcome;
}

std::optional<double> metric_value(const rl::LossSums& average, const std::string& name) {
  const std::map<std::string, double> values{
      {"loss", average.loss},
      {"kl_penalty", average.kl_penalty},
      {"positive_nll_loss", average.positive_nll_loss},
      {"probs_ratio", average.probs_ratio},
      {"probs_ratio_min", average.probs_ratio_min},
      {"probs_ratio_max", average.probs_ratio_max},
      {"probs_ratio_clamped", average.probs_ratio_clamped},
      {"probs_ratio_clamped_min", average.probs_ratio_clamped_min},
      {"probs_ratio_clamped_max", average.probs_ratio_clamped_max},
      {"token_mult_prob_error", average.token_mult_prob_error},
      {"gen_kl_error", average.gen_kl_error},
      {"policy_kl_error", average.policy_kl_error},
      {"js_divergence_error", average.js_divergence_error},
      {"sampling_importance_ratio", average.sampling_importance_ratio},
      {"is_oob_ratio", average.is_oob_ratio},
      {"approx_entropy", average.approx_entropy},
      {"num_valid_samples", average.num_valid_samples}};
  const auto found = values.find(name);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

void compare_rows(Comparison& comparison, const std::string& label, const Rows& actual,
                  const Rows& expected) {
  if (actual.size() != expected.size()) {
    comparison.fail(label + " has another number of sequences");
    return;
  }
  for (size_t i = 0; i < actual.size(); ++i)
    comparison.numbers(fmt::format("{}[{}]", label, i), actual[i], expected[i], kTolerance);
}

}  // namespace

CaseResult run_clipped_loss_case(const nlohmann::json& golden_case, const std::string& name) {
  rl::LossConfig config;
  if (const auto unknown = read_json_config(golden_case.at("config"), config))
    return unsupported(kKind, name, "config key " + *unknown);
  const nlohmann::json& metrics = golden_case.at("metrics");
  for (const auto& [metric, value] : metrics.items())
    if (!metric_value({}, metric)) return unsupported(kKind, name, "metric " + metric);

  const Inputs inputs(golden_case.at("inputs"));
  const rl::LossCounts counts{.valid_tokens = golden_case.at("valid_tokens").get<double>(),
                              .valid_sequences = golden_case.at("valid_sequences").get<double>(),
                              .positive_tokens = count_positive_tokens(inputs),
                              .denominator_epsilon = kDenominatorEpsilon};
  const Outcome outcome = evaluate(config, inputs, counts);

  Comparison comparison;
  comparison.number("loss", outcome.average.loss, golden_case.at("loss").get<double>(), kTolerance);
  compare_rows(comparison, "grad_current_logprobs", outcome.gradient,
               golden_case.at("grad_current_logprobs").get<Rows>());
  if (golden_case.contains("grad_current_logprobs_unfiltered"))
    compare_rows(comparison, "grad_current_logprobs_unfiltered", outcome.gradient_unfiltered,
                 golden_case.at("grad_current_logprobs_unfiltered").get<Rows>());
  for (const auto& [metric, value] : metrics.items()) {
    // The source multiplies sums here (golden README); ours is the mean over sequences.
    if (metric == "sampling_importance_ratio" && config.sequence_level_importance_ratios) continue;
    comparison.number(metric, *metric_value(outcome.average, metric), value.get<double>(),
                      kTolerance);
  }
  return comparison.result(kKind, name);
}

}  // namespace grpo::golden
