#include "model/product_probe.h"

#include <gtest/gtest.h>

#include "tests/model_fixture.h"

namespace grpo::model {
namespace {

using testing::RankContext;
using testing::TestModel;

class TransformerProductProbe : public ::testing::TestWithParam<bool> {
 protected:
  TransformerProductProbe()
      : model_(rank_, testing::even_config(GetParam()), testing::solo_groups()) {
    testing::fill_lively(model_.store, 7);
  }

  int64_t probe(const ProbeRows& rows) {
    return probe_products(model_.parameters, model_.store, model_.transformer.score_schedule(),
                          rows, rank_.ctx);
  }

  RankContext rank_;
  TestModel model_;
};

INSTANTIATE_TEST_SUITE_P(Models, TransformerProductProbe, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "tied" : "untied"; });

// QKV, output, gate and up, down, head: once for all layers.
TEST_P(TransformerProductProbe, EachShapeIsProbedOnce) {
  EXPECT_EQ(probe({.layers = 300, .head = 20}), 5);
  EXPECT_EQ(probe({.layers = 1, .head = 1}), 4);  // 2F is V here
}

// Products of up to 128 rows are split, those of more are not: a row's bits depend on the number.
TEST_P(TransformerProductProbe, RowsThatDependOnTheirNumberAreNoticed) {
  rank_.ctx.numerics.split_k = SplitK::kForced;
  if (rank_.ctx.device.kind == DeviceKind::kCpu) {
    EXPECT_EQ(probe({.layers = 300, .head = 20}), 5);  // nothing to check by contract
    return;
  }
  try {
    probe({.layers = 300, .head = 20});
    FAIL() << "not noticed";
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("[128, 64]"), std::string::npos) << error.what();
  }
}

// On a rehearsal device the operands are planned.
TEST_P(TransformerProductProbe, IsRehearsed) {
  Allocator allocator(Device{DeviceKind::kCuda, 0}.rehearsal());
  Workspace workspace(allocator);
  OpContext ctx{allocator.device(), Stream::none(), workspace};
  parallel::ShardedParameterStore store("policy", model_.parameters.specs, testing::solo_groups(),
                                        DType::kFloat32, parallel::Gradients::kNone, allocator);
  EXPECT_EQ(probe_products(model_.parameters, store, model_.transformer.score_schedule(),
                           {.layers = 300, .head = 20}, ctx),
            5);
  // Those of gate and up, the largest.
  const size_t floats = 300 * (64 + 256) + 5 * 256;
  EXPECT_GE(allocator.peaks().at("setup").workspace.total(), floats * sizeof(float));
}

}  // namespace
}  // namespace grpo::model
