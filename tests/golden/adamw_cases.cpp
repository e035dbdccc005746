#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/device_context.h"
#include "model/ops/optimizer_step.h"
#include "model/ops/reduce.h"
#include "tests/golden/operator_cases.h"

namespace grpo::golden {

namespace {

constexpr const char* kKind = "adamw";
// The operator works in float32 where torch worked in float64: a few roundings of 6e-8 a step.
constexpr double kTolerance = 1e-6;
constexpr double kNormEpsilon = 1e-6;  // clipping coefficient: max_norm / (norm + 1e-6), at most 1

void flatten(const nlohmann::json& nested, std::vector<float>& flat) {
  if (!nested.is_array()) {
    flat.push_back(static_cast<float>(nested.get<double>()));
    return;
  }
  for (const nlohmann::json& inner : nested) flatten(inner, flat);
}

std::vector<std::vector<float>> tensors_of(const nlohmann::json& list) {
  std::vector<std::vector<float>> tensors;
  for (const nlohmann::json& nested : list) flatten(nested, tensors.emplace_back());
  return tensors;
}

// One parameter with its optimizer state, in host memory.
struct Parameter {
  std::vector<float> master, weight, m, v;

  explicit Parameter(const std::vector<float>& initial)
      : master(initial), weight(initial), m(initial.size()), v(initial.size()) {}
};

Tensor view_of(std::vector<float>& values) {
  return {values.data(), DType::kFloat32, Shape({static_cast<int64_t>(values.size())}),
          Device::cpu()};
}

std::optional<std::string> unknown_key(const nlohmann::json& golden_case) {
  const std::vector<std::string> known{
      "name",  "lr",           "beta1",         "beta2",   "eps",
      "steps", "weight_decay", "max_grad_norm", "initial", "clip_coefficient_note"};
  for (const auto& [key, value] : golden_case.items())
    if (std::find(known.begin(), known.end(), key) == known.end()) return key;
  return std::nullopt;
}

class AdamWRun {
 public:
  AdamWRun(const nlohmann::json& golden_case, OpContext& ctx)
      : scalars_{.learning_rate = golden_case.at("lr").get<double>(),
                 .beta1 = golden_case.at("beta1").get<double>(),
                 .beta2 = golden_case.at("beta2").get<double>(),
                 .epsilon = golden_case.at("eps").get<double>(),
                 .weight_decay = golden_case.at("weight_decay").get<double>(),
                 .step = 0,
                 .gradient_scale = 1.0},
        ctx_(ctx) {
    if (!golden_case.at("max_grad_norm").is_null())
      max_norm_ = golden_case.at("max_grad_norm").get<double>();
    for (const std::vector<float>& initial : tensors_of(golden_case.at("initial")))
      parameters_.emplace_back(initial);
  }

  void step(const nlohmann::json& expected, Comparison& comparison) {
    const std::string where = fmt::format("step {} ", ++scalars_.step);
    std::vector<std::vector<float>> gradients = tensors_of(expected.at("grads"));
    const std::vector<std::vector<float>> params = tensors_of(expected.at("params"));
    if (gradients.size() != parameters_.size() || params.size() != parameters_.size()) {
      comparison.fail(where + "has another number of tensors than initial");
      return;
    }
    std::vector<Tensor> views;
    for (std::vector<float>& gradient : gradients) views.push_back(view_of(gradient));
    std::vector<float> largest(views.size());
    ops::largest_magnitudes(largest, views, ctx_);
    const ops::SquareGrid grid(*std::max_element(largest.begin(), largest.end()));
    const double norm = std::sqrt(grid.value(ops::square_sum(views, grid, ctx_)));
    comparison.number(where + "grad_norm", norm, expected.at("grad_norm").get<double>(),
                      kTolerance);
    scalars_.gradient_scale = max_norm_ ? std::min(1.0, *max_norm_ / (norm + kNormEpsilon)) : 1.0;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      ops::adamw_step({.master = view_of(parameter.master),
                       .m = view_of(parameter.m),
                       .v = view_of(parameter.v)},
                      view_of(parameter.weight), view_of(gradients[i]), scalars_, ctx_);
      comparison.tensor(fmt::format("{}params[{}]", where, i), parameter.weight, params[i],
                        kTolerance);
    }
  }

 private:
  ops::AdamWScalars scalars_;
  OpContext& ctx_;
  std::optional<double> max_norm_;
  std::vector<Parameter> parameters_;
};

}  // namespace

CaseResult run_adamw_case(const nlohmann::json& golden_case, const std::string& name) {
  if (const auto unknown = unknown_key(golden_case))
    return unsupported(kKind, name, "key " + *unknown);
  model::DeviceContext device(Device::cpu());
  AdamWRun run(golden_case, device.ctx);
  Comparison comparison;
  for (const nlohmann::json& step : golden_case.at("steps")) run.step(step, comparison);
  return comparison.result(kKind, name);
}

}  // namespace grpo::golden
