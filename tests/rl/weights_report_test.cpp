#include "rl/run/weights_report.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/model_fixture.h"

namespace grpo::rl {
namespace {

TEST(WeightsReport, NamesTheCulprit) {
  testing::RankContext rank;
  testing::TestModel model(rank, testing::even_config(), testing::solo_groups());
  testing::fill_lively(model.store, 1);
  const auto set_first = [&](const std::string& name, float value) {
    testing::for_each_region(model.store,
                             [&](ParameterId, const LogicalTensor& part,
                                 const parallel::ShardRegion& region, const Tensor& shard) {
                               if (part.name == name)
                                 shard.rows(region.stored_row, 1).data<float>()[0] = value;
                             });
  };
  set_first("model.layers.1.mlp.up_proj.weight", -1e20f);
  EXPECT_EQ(describe_weights(model.store),
            "this rank's weights are finite, the largest is 1e+20 in "
            "'model.layers.1.mlp.up_proj.weight'");
  set_first("model.layers.0.self_attn.k_proj.bias", std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(describe_weights(model.store),
            "the weights of 'model.layers.0.self_attn.k_proj.bias' are not finite");
}

}  // namespace
}  // namespace grpo::rl
