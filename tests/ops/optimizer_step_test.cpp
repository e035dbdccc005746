#include "model/ops/optimizer_step.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

using Json = nlohmann::json;

Json golden(const std::string& name) {
  std::ifstream file(std::string(GRPO_TEST_DATA_DIR) + "/golden/" + name);
  return Json::parse(file);
}

// The numbers of nested lists, one after another.
Values flattened(const Json& lists) {
  if (lists.is_number()) return {lists.get<double>()};
  Values out;
  for (const Json& inner : lists) {
    const Values part = flattened(inner);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

class OptimizerStepTest : public OpTest {
 protected:
  AdamWState state_of(const Values& initial) {
    const auto count = static_cast<int64_t>(initial.size());
    return {from(DType::kFloat32, {count}, initial),
            from(DType::kFloat32, {count}, Values(initial.size(), 0.0)),
            from(DType::kFloat32, {count}, Values(initial.size(), 0.0))};
  }
};

TEST_F(OptimizerStepTest, AdamWFollowsTheGoldenFile) {
  const Json cases = golden("adamw.json").at("cases");
  ASSERT_FALSE(cases.empty());
  for (const Json& test : cases) {
    SCOPED_TRACE(test.at("name").get<std::string>());
    const AdamWState state = state_of(flattened(test.at("initial")));
    const Tensor weight = make(DType::kFloat32, state.master.shape());
    AdamWScalars scalars{.learning_rate = test.at("lr"),
                         .beta1 = test.at("beta1"),
                         .beta2 = test.at("beta2"),
                         .epsilon = test.at("eps"),
                         .weight_decay = test.at("weight_decay"),
                         .step = 0,
                         .gradient_scale = 1.0};
    for (const Json& step : test.at("steps")) {
      const Values gradient = flattened(step.at("grads"));
      const double norm = std::sqrt(dot(gradient, gradient));
      EXPECT_NEAR(norm, step.at("grad_norm").get<double>(), 1e-6 * norm);
      if (!test.at("max_grad_norm").is_null()) {
        const double max_norm = test.at("max_grad_norm");
        scalars.gradient_scale = std::min(1.0, max_norm / (norm + 1e-6));
      }
      ++scalars.step;
      adamw_step(state, weight, from(DType::kFloat32, state.master.shape(), gradient), scalars,
                 ctx());
      const Values wanted = flattened(step.at("params"));
      expect_close(values_of(state.master), wanted, kAdamW, "params");
      expect_same_bits(weight, state.master, "weight");
    }
  }
}

TEST_F(OptimizerStepTest, Bfloat16WeightIsTheRoundedMaster) {
  const AdamWState state = state_of({1.0, -2.0, 0.5});
  const Tensor weight = make(DType::kBfloat16, {3});
  adamw_step(state, weight, random(DType::kFloat32, {3}), {0.01, 0.9, 0.99, 1e-8, 0.1, 1, 1.0},
             ctx());
  expect_same_bits(weight, from(DType::kBfloat16, {3}, values_of(state.master)), "weight");
}

TEST_F(OptimizerStepTest, SgdIsDecayThenStep) {
  for (const DType dtype : kActivationDTypes) {
    const Tensor master = from(DType::kFloat32, {2}, {2.0, -4.0});
    const Tensor weight = make(dtype, {2});
    sgd_step(master, weight, from(DType::kFloat32, {2}, {8.0, 16.0}), {0.5, 0.25, 0.125}, ctx());
    EXPECT_EQ(values_of(master), (Values{2.0 * 0.875 - 0.5, -4.0 * 0.875 - 1.0}));
    EXPECT_EQ(values_of(weight), values_of(master));
  }
}

TEST_F(OptimizerStepTest, ZeroElementsAndChecks) {
  const AdamWState none = state_of({});
  const Tensor empty = make(DType::kFloat32, {0});
  const AdamWScalars scalars{0.01, 0.9, 0.99, 1e-8, 0.1, 1, 1.0};
  adamw_step(none, empty, empty, scalars, ctx());
  sgd_step(empty, empty, empty, {0.5, 0.0, 1.0}, ctx());

  const AdamWState state = state_of({1.0, 2.0});
  const Tensor two = random(DType::kFloat32, {2});
  AdamWScalars zero_step = scalars;
  zero_step.step = 0;
  EXPECT_THROW(adamw_step(state, two, two, zero_step, ctx()), InternalError);
  EXPECT_THROW(adamw_step(state, empty, two, scalars, ctx()), InternalError);
  EXPECT_THROW(adamw_step(state, two, random(DType::kBfloat16, {2}), scalars, ctx()),
               InternalError);
  EXPECT_THROW(sgd_step(two, two, empty, {0.5, 0.0, 1.0}, ctx()), InternalError);
}

}  // namespace
}  // namespace grpo::ops
