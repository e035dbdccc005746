#include "tests/golden/golden_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace grpo::golden {

namespace {

constexpr double kCancellationFloor = 1e-15;

bool same_special_value(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (std::isinf(a) && a == b);
}

}  // namespace

void Comparison::fail(const std::string& message) {
  if (num_failures_++ == 0) first_failure_ = message;
}

void Comparison::record(const std::string& label, double error, double allowed, double actual,
                        double expected) {
  ++num_values_;
  // Written so that a NaN error fails.
  if (!(error <= allowed)) {
    fail(fmt::format("{} is {:.17g}, expected {:.17g} (error {:.3g}, allowed {:.3g})", label,
                     actual, expected, error, allowed));
    return;
  }
  const double share = allowed > 0 ? error / allowed : 0.0;
  if (share > worst_share_) {
    worst_share_ = share;
    worst_error_ = error;
    worst_label_ = label;
  }
}

void Comparison::number(const std::string& label, double actual, double expected,
                        double tolerance) {
  if (same_special_value(actual, expected)) {
    ++num_values_;
    return;
  }
  // An infinite expectation must not make its own tolerance infinite.
  const double allowed =
      std::isfinite(expected) ? tolerance * std::abs(expected) + kCancellationFloor : 0.0;
  record(label, std::abs(actual - expected), allowed, actual, expected);
}

void Comparison::numbers(const std::string& label, std::span<const double> actual,
                         std::span<const double> expected, double tolerance) {
  if (actual.size() != expected.size()) {
    fail(fmt::format("{} has {} values, expected {}", label, actual.size(), expected.size()));
    return;
  }
  for (size_t i = 0; i < actual.size(); ++i)
    number(fmt::format("{}[{}]", label, i), actual[i], expected[i], tolerance);
}

void Comparison::tensor(const std::string& label, std::span<const float> actual,
                        std::span<const float> expected, double tolerance) {
  if (actual.size() != expected.size()) {
    fail(fmt::format("{} has {} elements, expected {}", label, actual.size(), expected.size()));
    return;
  }
  double largest = 0;
  for (const float value : expected)
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error =
        std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    // The label is built only where it is needed: tensors are long.
    const bool matters = !(error <= worst_error_) || !(error <= tolerance * largest);
    record(matters ? fmt::format("{}[{}]", label, i) : label, error, tolerance * largest, actual[i],
           expected[i]);
  }
}

void Comparison::equal(const std::string& label, const std::string& actual,
                       const std::string& expected) {
  ++num_values_;
  if (actual != expected) fail(fmt::format("{} is {}, expected {}", label, actual, expected));
}

CaseResult Comparison::result(const std::string& kind, const std::string& name) const {
  if (num_failures_ > 0) {
    const std::string more =
        num_failures_ > 1 ? fmt::format("; {} more", num_failures_ - 1) : std::string();
    return {kind, name, CaseResult::Status::kFail, first_failure_ + more};
  }
  if (num_values_ == 0)
    return {kind, name, CaseResult::Status::kFail, "the case holds nothing to compare"};
  std::string detail = fmt::format("{} values", num_values_);
  if (worst_share_ > 0)
    detail += fmt::format(", largest error {:.2g} ({:.1g} of the tolerance) in {}", worst_error_,
                          worst_share_, worst_label_);
  return {kind, name, CaseResult::Status::kPass, detail};
}

CaseResult unsupported(const std::string& kind, const std::string& name, const std::string& what) {
  return {kind, name, CaseResult::Status::kUnsupported, what};
}

}  // namespace grpo::golden
