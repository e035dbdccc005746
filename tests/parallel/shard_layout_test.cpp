#include "parallel/layout/shard_layout.h"

#include <gtest/gtest.h>

#include <numeric>

#include "model/core/errors.h"
#include "model/transformer_parameters.h"
#include "tests/model_fixture.h"

namespace grpo::parallel {
namespace {

using model::ModelConfig;
using model::TransformerParameters;

// Qwen2.5-0.5B's widths with one layer.
ModelConfig q05_config() {
  ModelConfig config = *model::preset_model_config("qwen2.5-0.5b");
  config.num_layers = 1;
  return config;
}

TransformerParameters parameters_of(const ModelConfig& config) {
  return model::make_transformer_parameters(config, 0.02f);
}

struct Axes {
  int tp;
  int gtp;
};

ShardLayout layout_of(const ParameterSpec& spec, Axes axes, int tp_rank, int gtp_rank,
                      int64_t alignment = 16) {
  return compute_shard_layout(spec, {.tp_size = axes.tp,
                                     .tp_rank = tp_rank,
                                     .gtp_size = axes.gtp,
                                     .gtp_rank = gtp_rank,
                                     .gtp_alignment = alignment});
}

int64_t real_rows(const ShardLayout& layout) {
  int64_t rows = 0;
  for (const ShardRegion& region : layout.regions) rows += region.num_rows;
  return rows;
}

// Logical rows stored by each gtp rank of tp rank 0: "80 51".
std::string real_rows_by_rank(const ParameterSpec& spec, Axes axes) {
  std::string rows;
  for (int rank = 0; rank < axes.gtp; ++rank) {
    rows += fmt::format("{}{}", rank == 0 ? "" : " ", real_rows(layout_of(spec, axes, 0, rank)));
  }
  return rows;
}

using Rows = std::vector<int64_t>;

TEST(ShardLayout, G05_OddModelPadsAnywhereAndWholeRanks) {
  const TransformerParameters odd = parameters_of(testing::odd_config());
  const auto spec = [&](ParameterId id) { return odd.specs[static_cast<size_t>(id)]; };
  const model::LayerParameters& layer = odd.layers[0];
  EXPECT_EQ(real_rows_by_rank(spec(odd.embedding), {1, 2}), "80 51");
  EXPECT_EQ(real_rows_by_rank(spec(layer.qkv_weight), {1, 2}), "48 32");
  EXPECT_EQ(real_rows_by_rank(spec(layer.o_weight), {1, 2}), "32 16");
  EXPECT_EQ(real_rows_by_rank(spec(layer.down_weight), {1, 2}), "32 16");
  EXPECT_EQ(real_rows_by_rank(spec(layer.gate_up_weight), {1, 2}), "112 88");
  EXPECT_EQ(real_rows_by_rank(spec(odd.embedding), {1, 4}), "48 48 35 0");
  EXPECT_EQ(real_rows_by_rank(spec(layer.qkv_weight), {1, 4}), "32 32 16 0");
  EXPECT_EQ(real_rows_by_rank(spec(layer.o_weight), {1, 4}), "16 16 16 0");
  EXPECT_EQ(real_rows_by_rank(spec(layer.down_weight), {1, 4}), "16 16 16 0");
  EXPECT_EQ(real_rows_by_rank(spec(layer.gate_up_weight), {1, 4}), "64 64 64 8");
}

TEST(ShardLayout, G05_PaddingIsOfTheTpSliceNotOfTheFullWidth) {
  const TransformerParameters odd = parameters_of(testing::odd_config());
  const ShardLayout qkv =
      layout_of(odd.specs[static_cast<size_t>(odd.layers[0].qkv_weight)], {2, 2}, 1, 0);
  EXPECT_EQ(qkv.tp_rows, 40);
  EXPECT_EQ(qkv.padded_rows, 64);  // not 96 / 2
  EXPECT_EQ(qkv.shard_rows, 32);
  ASSERT_FALSE(qkv.regions.empty());
  // q of tp rank 1 starts at logical row 24 of 48; a stored row is no logical row.
  EXPECT_EQ(qkv.regions[0], (ShardRegion{.part = 0,
                                         .logical_row = 24,
                                         .logical_col = 0,
                                         .num_rows = 24,
                                         .num_cols = 48,
                                         .stored_row = 0}));
}

TEST(ShardLayout, G05_VocabularyIsFirstPaddedToTp) {
  const TransformerParameters odd = parameters_of(testing::odd_config());
  const ParameterSpec& embedding = odd.specs[static_cast<size_t>(odd.embedding)];
  for (const int tp_rank : {0, 1}) {
    const ShardLayout whole = layout_of(embedding, {2, 1}, tp_rank, 0);
    EXPECT_EQ(whole.tp_rows, 66);  // 132 / 2
    EXPECT_EQ(real_rows(whole), tp_rank == 0 ? 66 : 65);
    EXPECT_EQ(whole.regions[0].logical_row, 66 * tp_rank);
  }
}

TEST(ShardLayout, G01_BiasIsWholeOnEveryGtpPeer) {
  const TransformerParameters odd = parameters_of(testing::odd_config());
  const ParameterSpec& bias = odd.specs[static_cast<size_t>(odd.layers[0].qkv_bias)];
  for (const int rank : {0, 1}) {
    const ShardLayout layout = layout_of(bias, {1, 2}, 0, rank);
    EXPECT_EQ(layout.shard_rows, 80);
    EXPECT_EQ(real_rows(layout), 80);
    EXPECT_EQ(layout_of(bias, {2, 4}, rank, 3).shard_rows, 40);
  }
}

TEST(ShardLayout, G05_EvenModelNeedsNoPaddingUpToFour) {
  const TransformerParameters even = parameters_of(testing::even_config());
  for (const ParameterSpec& spec : even.specs) {
    for (const int gtp : {1, 2, 4}) {
      EXPECT_EQ(layout_of(spec, {1, gtp}, 0, 0).padded_rows, spec.rows())
          << spec.name << " gtp " << gtp;
    }
  }
}

TEST(ShardLayout, G05_HalfBillionModelPadsOnlyAtThreeSixAndWideAlignment) {
  const TransformerParameters q05 = parameters_of(q05_config());
  const auto padding = [&](ParameterId id, int gtp, int64_t alignment) {
    const ShardLayout layout =
        layout_of(q05.specs[static_cast<size_t>(id)], {1, gtp}, 0, 0, alignment);
    return layout.padded_rows - layout.tp_rows;
  };
  const model::LayerParameters& layer = q05.layers[0];
  const std::vector<ParameterId> matrices = {q05.embedding, layer.qkv_weight, layer.o_weight,
                                             layer.gate_up_weight, layer.down_weight};
  for (const ParameterId id : matrices) {
    for (const int gtp : {2, 4, 8}) EXPECT_EQ(padding(id, gtp, 16), 0);
  }
  EXPECT_EQ(padding(layer.o_weight, 3, 16), 912 - 896);
  EXPECT_EQ(padding(layer.gate_up_weight, 3, 16), 9744 - 9728);
  EXPECT_EQ(padding(q05.embedding, 3, 16), 32);
  EXPECT_GT(padding(layer.o_weight, 6, 16), 0);
  for (const ParameterId id :
       {q05.embedding, layer.qkv_weight, layer.o_weight, layer.down_weight}) {
    EXPECT_EQ(padding(id, 8, 32), 128);
  }
  EXPECT_EQ(padding(layer.gate_up_weight, 8, 32), 0);
}

TEST(ShardLayout, R03_ShardsStraddleTheBordersOfFusedTensors) {
  const TransformerParameters odd = parameters_of(testing::odd_config());
  const ShardLayout gate_up =
      layout_of(odd.specs[static_cast<size_t>(odd.layers[0].gate_up_weight)], {1, 2}, 0, 0);
  ASSERT_EQ(gate_up.regions.size(), 2u);
  EXPECT_EQ(gate_up.regions[0].num_rows, 100);  // all of gate
  EXPECT_EQ(gate_up.regions[1].num_rows, 12);   // and the start of up
  EXPECT_EQ(gate_up.regions[1].part, 1);
  EXPECT_EQ(gate_up.regions[1].stored_row, 100);
}

TEST(ShardLayout, R03_HalfBillionModelAtTpTwoCutsByHeads) {
  const TransformerParameters q05 = parameters_of(q05_config());
  const ShardLayout qkv =
      layout_of(q05.specs[static_cast<size_t>(q05.layers[0].qkv_weight)], {2, 1}, 0, 0);
  ASSERT_EQ(qkv.regions.size(), 3u);
  EXPECT_EQ(qkv.regions[0].num_rows, 7 * 64);
  EXPECT_EQ(qkv.regions[1].num_rows, 64);
  EXPECT_EQ(qkv.regions[2].num_rows, 64);
}

TEST(ShardLayout, TensorsThatDoNotDivideOverTpAreRefused) {
  const TransformerParameters odd = parameters_of(testing::odd_config());
  const auto message = [&](ParameterId id, int tp) -> std::string {
    try {
      layout_of(odd.specs[static_cast<size_t>(id)], {tp, 1}, 0, 0);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      message(odd.layers[0].gate_up_weight, 3),
      "rows of 'model.layers.0.mlp.gate_proj.weight', 100, do not divide over parallel.tensor = 3");
  EXPECT_EQ(message(odd.layers[1].down_weight, 3),
            "columns of 'model.layers.1.mlp.down_proj.weight', 100, do not divide over "
            "parallel.tensor = 3");
  EXPECT_NE(message(odd.layers[0].qkv_weight, 5), "");
  EXPECT_EQ(message(odd.embedding, 3), "");   // the vocabulary is padded
  EXPECT_EQ(message(odd.final_norm, 5), "");  // norms are not cut
}

TEST(ShardLayout, CoordinatesOutsideTheMeshAreAnError) {
  const TransformerParameters odd = parameters_of(testing::odd_config());
  EXPECT_THROW(layout_of(odd.specs[0], {1, 2}, 0, 2), InternalError);
  EXPECT_THROW(layout_of(odd.specs[0], {2, 1}, 2, 0), InternalError);
  EXPECT_THROW(layout_of(odd.specs[0], {1, 2}, 0, 0, 0), InternalError);
}

struct CoverageCase {
  const char* name;
  ModelConfig config;
  Axes axes;
};

class ShardCoverage : public ::testing::TestWithParam<CoverageCase> {
 protected:
  // How often each (row, column block of a tp cut) of a part is stored, over all ranks.
  std::vector<std::vector<int>> count(const ParameterSpec& spec) const {
    const Axes axes = GetParam().axes;
    const int blocks = spec.tp_cut == TpCut::kColumns ? axes.tp : 1;
    std::vector<std::vector<int>> counts;
    for (const LogicalTensor& part : spec.parts) {
      counts.emplace_back(static_cast<size_t>(part.rows * blocks), 0);
    }
    for (int tp_rank = 0; tp_rank < axes.tp; ++tp_rank) {
      for (int gtp_rank = 0; gtp_rank < axes.gtp; ++gtp_rank) {
        for (const ShardRegion& r : layout_of(spec, axes, tp_rank, gtp_rank).regions) {
          const LogicalTensor& part = spec.parts[static_cast<size_t>(r.part)];
          EXPECT_EQ(r.num_cols * blocks, part.cols);
          EXPECT_EQ(r.logical_col % r.num_cols, 0);
          for (int64_t row = r.logical_row; row < r.logical_row + r.num_rows; ++row) {
            ++counts[static_cast<size_t>(r.part)].at(
                static_cast<size_t>(row * blocks + r.logical_col / r.num_cols));
          }
        }
      }
    }
    return counts;
  }
};

TEST_P(ShardCoverage, EachLogicalElementOnceAReplica) {
  const Axes axes = GetParam().axes;
  for (const ParameterSpec& spec : parameters_of(GetParam().config).specs) {
    const int copies = (spec.gtp == GtpPlacement::kReplicated ? axes.gtp : 1) *
                       (spec.tp_cut == TpCut::kReplicated ? axes.tp : 1);
    for (const std::vector<int>& counts : count(spec)) {
      EXPECT_EQ(counts, std::vector<int>(counts.size(), copies)) << spec.name;
    }
  }
}

TEST_P(ShardCoverage, RegionsAscendInsideTheShard) {
  const Axes axes = GetParam().axes;
  for (const ParameterSpec& spec : parameters_of(GetParam().config).specs) {
    for (int gtp_rank = 0; gtp_rank < axes.gtp; ++gtp_rank) {
      const ShardLayout layout = layout_of(spec, axes, axes.tp - 1, gtp_rank);
      int64_t next = 0;
      for (const ShardRegion& region : layout.regions) {
        EXPECT_GE(region.stored_row, next);
        EXPECT_GT(region.num_rows, 0);
        EXPECT_EQ(region.num_cols, layout.cols);
        next = region.stored_row + region.num_rows;
      }
      EXPECT_LE(next, layout.shard_rows);
      if (spec.gtp == GtpPlacement::kSharded && axes.gtp > 1) {
        EXPECT_EQ(layout.shard_rows % 16, 0);
        EXPECT_EQ(layout.shard_rows * axes.gtp, layout.padded_rows);
        EXPECT_LT(layout.padded_rows - layout.tp_rows, 16 * axes.gtp);
      }
    }
  }
}

// Shards laid end to end are the TP-local weight; every row is named by a code, padding is -1.
TEST_P(ShardCoverage, ShardsLaidEndToEndAreTheGatheredWeight) {
  const Axes axes = GetParam().axes;
  const auto code = [](const ShardRegion& region, int64_t row) {
    return region.part * 1000000 + region.logical_row + row;
  };
  for (const ParameterSpec& spec : parameters_of(GetParam().config).specs) {
    if (spec.gtp == GtpPlacement::kReplicated) continue;
    for (int tp_rank = 0; tp_rank < axes.tp; ++tp_rank) {
      const ShardLayout first = layout_of(spec, axes, tp_rank, 0);
      Rows gathered(static_cast<size_t>(first.padded_rows), -1);
      for (int gtp_rank = 0; gtp_rank < axes.gtp; ++gtp_rank) {
        for (const ShardRegion& r : layout_of(spec, axes, tp_rank, gtp_rank).regions) {
          for (int64_t row = 0; row < r.num_rows; ++row) {
            gathered.at(static_cast<size_t>(gtp_rank * first.shard_rows + r.stored_row + row)) =
                code(r, row);
          }
        }
      }
      Rows expected(static_cast<size_t>(first.padded_rows), -1);
      for (const ShardRegion& r : tp_local_regions(spec, axes.tp, tp_rank)) {
        for (int64_t row = 0; row < r.num_rows; ++row) {
          expected.at(static_cast<size_t>(r.stored_row + row)) = code(r, row);
        }
      }
      EXPECT_EQ(gathered, expected) << spec.name;
    }
  }
}

std::vector<CoverageCase> coverage_cases() {
  std::vector<CoverageCase> cases;
  for (const Axes axes :
       {Axes{1, 1}, Axes{1, 2}, Axes{1, 3}, Axes{1, 4}, Axes{2, 1}, Axes{2, 2}, Axes{2, 3}}) {
    cases.push_back({"EVEN", testing::even_config(), axes});
    cases.push_back({"ODD", testing::odd_config(), axes});
    cases.push_back({"ODD_untied", testing::odd_config(false), axes});
    cases.push_back({"Q05", q05_config(), axes});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Layouts, ShardCoverage, ::testing::ValuesIn(coverage_cases()),
                         [](const auto& test) {
                           return fmt::format("{}_tp{}_gtp{}", test.param.name, test.param.axes.tp,
                                              test.param.axes.gtp);
                         });

}  // namespace
}  // namespace grpo::parallel
