#include "model/transformer_parameters.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "model/files/safetensors.h"
#include "tests/model_fixture.h"

namespace grpo::model {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes logical_shapes(const TransformerParameters& parameters) {
  Shapes shapes;
  for (const ParameterSpec& spec : parameters.specs) {
    for (const LogicalTensor& part : spec.parts) {
      const bool is_new =
          shapes
              .emplace(part.name, part.is_vector ? std::vector<int64_t>{part.rows}
                                                 : std::vector<int64_t>{part.rows, part.cols})
              .second;
      EXPECT_TRUE(is_new) << part.name << " is declared twice";
    }
  }
  return shapes;
}

// The golden models' files were written by another program: their names and shapes are the
// contract.
TEST(TransformerParameters, NamesAndShapesAreTheFilesOfHuggingFace) {
  for (const char* name : {"qwen2_tiny_tied", "qwen2_odd_vocab_tied", "qwen2_tiny_untied"}) {
    SCOPED_TRACE(name);
    const std::string folder = std::string(GRPO_TEST_DATA_DIR "/golden/") + name;
    Shapes in_file;
    for (const TensorInfo& info : WeightsDirectory(folder).tensors())
      in_file[info.name] = info.shape;
    EXPECT_EQ(logical_shapes(make_transformer_parameters(read_model_config(folder), 0.02f)),
              in_file);
  }
}

TEST(TransformerParameters, ATiedHeadIsTheEmbeddingItself) {
  const TransformerParameters tied = make_transformer_parameters(testing::odd_config(true), 0.02f);
  EXPECT_EQ(tied.head, tied.embedding);
  const TransformerParameters untied =
      make_transformer_parameters(testing::odd_config(false), 0.02f);
  EXPECT_NE(untied.head, untied.embedding);
  EXPECT_EQ(num_elements(untied.specs) - num_elements(tied.specs), 131 * 48);
}

TEST(TransformerParameters, MatricesAreShardedAndDecayVectorsAreReplicatedAndDoNot) {
  for (const ParameterSpec& spec :
       make_transformer_parameters(testing::odd_config(), 0.02f).specs) {
    EXPECT_EQ(spec.gtp, spec.is_vector() ? GtpPlacement::kReplicated : GtpPlacement::kSharded)
        << spec.name;
    EXPECT_EQ(spec.decays, !spec.is_vector()) << spec.name;
    EXPECT_EQ(spec.init == InitKind::kNormal, !spec.is_vector()) << spec.name;
    for (const LogicalTensor& part : spec.parts) EXPECT_EQ(part.cols, spec.cols());
  }
}

TEST(TransformerParameters, CountIsThePublishedModels) {
  // 494,032,768 parameters, as Qwen2.5-0.5B's weights hold.
  const auto config = preset_model_config("qwen2.5-0.5b");
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(num_elements(make_transformer_parameters(*config, 0.02f).specs), 494032768);
}

}  // namespace
}  // namespace grpo::model
