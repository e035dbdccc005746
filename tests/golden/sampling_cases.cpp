#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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

  ops::KeptTokens kept(const ops::SamplingFilter& filter) {
    ops::KeptTokens kept;
    ops::filter_tokens(kept, logits_view(), filter, device_.ctx);
    return kept;
  }

  // Log-probability of a token over the kept ones.
  double logprob(int32_t token, const ops::KeptTokensView& kept, float inv_temperature) {
    float processed = 0;
    float unfiltered = 0;
    const auto scalar = [](void* data, DType dtype) {
      return Tensor(data, dtype, Shape({1}), Device::cpu());
    };
    ops::token_logprobs({.processed = scalar(&processed, DType::kFloat32),
                         .unfiltered = scalar(&unfiltered, DType::kFloat32)},
                        logits_view(), scalar(&token, DType::kInt32), kept, inv_temperature,
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

// NeMo-RL's top-k keeps every tie with the k-th logit, ours exactly k tokens, the lower ids of
// equal ones: the source's cases say what is right for both as long as none has such a tie.
bool ties_with_the_kth(std::vector<float> logits, int32_t top_k) {
  const auto k = static_cast<size_t>(top_k);
  if (k == 0 || k >= logits.size()) return false;
  std::sort(logits.rbegin(), logits.rend());
  return logits[k - 1] == logits[k];
}

std::string id_list(const std::vector<int32_t>& ids) {
  std::string list;
  for (const int32_t id : ids) list += fmt::format("{} ", id);
  return list;
}

}  // namespace

CaseResult run_sampling_case(const nlohmann::json& golden_case, const std::string& name) {
  const auto logits = golden_case.at("logits").get<std::vector<float>>();
  ops::SamplingFilter filter = filter_of(golden_case);
  const nlohmann::json& processed = golden_case.at("processed_logprobs");
  const auto raw = golden_case.at("raw_logprobs").get<std::vector<double>>();
  if (processed.size() != logits.size() || raw.size() != logits.size())
    throw std::runtime_error("log-probabilities and logits differ in number");

  LogitsRow row(logits);
  Comparison comparison;
  if (ties_with_the_kth(logits, filter.top_k))
    comparison.fail("the k-th logit ties with others: the source keeps them all, this program k");
  filter.max_kept_ids = static_cast<int32_t>(logits.size());
  const ops::KeptTokens by_id = row.kept(filter);
  filter.max_kept_ids = 0;
  const ops::KeptTokens by_threshold = row.kept(filter);
  const std::span<const uint32_t> ids = by_id.view().row_ids(0);
  const std::vector<int32_t> kept(ids.begin(), ids.end());
  comparison.equal("kept set", id_list(kept),
                   id_list(golden_case.at("kept").get<std::vector<int32_t>>()));
  for (size_t v = 0; v < logits.size(); ++v) {
    const auto token = static_cast<int32_t>(v);
    const std::string index = fmt::format("[{}]", v);
    compare_logprob(comparison, "raw_logprobs" + index, row.logprob(token, {}, 1.0f), raw[v]);
    // A removed token has no log-probability to compare: the operator counts its target as kept.
    const bool is_kept = std::binary_search(kept.begin(), kept.end(), token);
    if (processed[v].is_null() == is_kept)
      comparison.fail(fmt::format("token {} is {}", v, is_kept ? "kept" : "removed"));
    if (processed[v].is_null() || !is_kept) continue;
    for (const ops::KeptTokens* stored : {&by_id, &by_threshold}) {
      compare_logprob(comparison, "processed_logprobs" + index,
                      row.logprob(token, stored->view(), filter.inv_temperature()),
                      processed[v].get<double>());
    }
  }
  return comparison.result(kKind, name);
}

}  // namespace grpo::golden
