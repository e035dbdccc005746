#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/device_context.h"
#include "model/ops/log_softmax.h"
#include "tests/golden/operator_cases.h"

namespace grpo::golden {

namespace {

constexpr const char* kKind = "sampling_filter";
// Log-probabilities are float32 here, and the source divides by the temperature in float32.
constexpr double kTolerance = 1e-6;

ops::SamplingFilter filter_of(const nlohmann::json& golden_case) {
  ops::SamplingFilter filter;
  filter.temperature = golden_case.at("temperature").get<float>();
  if (!golden_case.at("top_k").is_null()) filter.top_k = golden_case.at("top_k").get<int32_t>();
  if (!golden_case.at("top_p").is_null()) filter.top_p = golden_case.at("top_p").get<float>();
  return filter;
}

// The operators on one row of logits.
class LogitsRow {
 public:
  explicit LogitsRow(std::vector<float> logits)
      : logits_(std::move(logits)), device_(Device::cpu()) {}

  ops::TokenCut cut(const ops::SamplingFilter& filter) {
    ops::TokenCut cut;
    ops::compute_cuts(&cut, logits_view(), filter, device_.ctx);
    return cut;
  }

  // Log-probability of a token over the cut's kept set.
  double logprob(int32_t token, const ops::TokenCut& cut, float inv_temperature) {
    float processed = 0;
    float unfiltered = 0;
    const auto scalar = [](void* data, DType dtype) {
      return Tensor(data, dtype, Shape({1}), Device::cpu());
    };
    ops::token_logprobs({.processed = scalar(&processed, DType::kFloat32),
                         .unfiltered = scalar(&unfiltered, DType::kFloat32)},
                        logits_view(), scalar(&token, DType::kInt32), &cut, inv_temperature,
                        device_.ctx);
    return processed;
  }

 private:
  Tensor logits_view() {
    return {logits_.data(), DType::kFloat32, Shape({1, static_cast<int64_t>(logits_.size())}),
            Device::cpu()};
  }

  std::vector<float> logits_;
  model::DeviceContext device_;
};

// Within 1e-6 of values of order 1 to 10; the tolerance does not shrink towards a log-probability
// of 0.
void compare_logprob(Comparison& comparison, const std::string& label, double actual,
                     double expected) {
  comparison.number(label, actual - expected + 1.0, 1.0,
                    kTolerance * std::max(1.0, std::abs(expected)));
}

std::string id_list(const std::vector<int32_t>& ids) {
  std::string list;
  for (const int32_t id : ids) list += fmt::format("{} ", id);
  return list;
}

}  // namespace

CaseResult run_sampling_case(const nlohmann::json& golden_case, const std::string& name) {
  const auto logits = golden_case.at("logits").get<std::vector<float>>();
  const ops::SamplingFilter filter = filter_of(golden_case);
  const nlohmann::json& processed = golden_case.at("processed_logprobs");
  const auto raw = golden_case.at("raw_logprobs").get<std::vector<double>>();
  if (processed.size() != logits.size() || raw.size() != logits.size())
    throw std::runtime_error("log-probabilities and logits differ in number");

  LogitsRow row(logits);
  const ops::TokenCut cut = row.cut(filter);
  std::vector<int32_t> kept;
  for (size_t v = 0; v < logits.size(); ++v)
    if (cut.keeps(logits[v] * filter.inv_temperature(), static_cast<int32_t>(v)))
      kept.push_back(static_cast<int32_t>(v));
  Comparison comparison;
  comparison.equal("kept set", id_list(kept),
                   id_list(golden_case.at("kept").get<std::vector<int32_t>>()));
  for (size_t v = 0; v < logits.size(); ++v) {
    const auto token = static_cast<int32_t>(v);
    const std::string index = fmt::format("[{}]", v);
    compare_logprob(comparison, "raw_logprobs" + index, row.logprob(token, {}, 1.0f), raw[v]);
    // A removed token has no log-probability to compare: the operator counts its target as kept.
    const bool is_kept = cut.keeps(logits[v] * filter.inv_temperature(), token);
    if (processed[v].is_null() == is_kept)
      comparison.fail(fmt::format("token {} is {}", v, is_kept ? "kept" : "removed"));
    else if (is_kept)
      compare_logprob(comparison, "processed_logprobs" + index,
                      row.logprob(token, cut, filter.inv_temperature()),
                      processed[v].get<double>());
  }
  return comparison.result(kKind, name);
}

}  // namespace grpo::golden
