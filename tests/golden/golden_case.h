// What a golden case reports, and the comparison of its values.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace grpo::golden {

struct CaseResult {
  enum class Status { kPass, kFail, kUnsupported, kNotRun };

  std::string kind;  // "clipped_pg_loss", "qwen2", ...
  std::string name;  // of the case inside its file or folder
  Status status;
  std::string detail;  // largest error of a pass; what differs; the unsupported kind or key; why it
                       // did not run
};

// Collects comparisons of one case: the first failure, and the largest error in units of the
// tolerance.
class Comparison {
 public:
  // |actual - expected| <= tolerance * |expected| + 1e-15; the absolute part is the rounding of a
  // sum of terms of order 1 that cancel. Both infinite with one sign, or both NaN, are equal.
  void number(const std::string& label, double actual, double expected, double tolerance);
  // Equal lengths, and each element by the same rule.
  void numbers(const std::string& label, std::span<const double> actual,
               std::span<const double> expected, double tolerance);
  // |actual - expected| <= tolerance * (largest |expected|): for tensors.
  void tensor(const std::string& label, std::span<const float> actual,
              std::span<const float> expected, double tolerance);
  void equal(const std::string& label, const std::string& actual, const std::string& expected);
  void fail(const std::string& message);

  CaseResult result(const std::string& kind, const std::string& name) const;

 private:
  void record(const std::string& label, double error, double allowed, double actual,
              double expected);

  size_t num_values_ = 0;
  size_t num_failures_ = 0;
  std::string first_failure_;
  double worst_share_ = 0;  // error / allowed
  double worst_error_ = 0;
  std::string worst_label_;
};

CaseResult unsupported(const std::string& kind, const std::string& name, const std::string& what);

}  // namespace grpo::golden
