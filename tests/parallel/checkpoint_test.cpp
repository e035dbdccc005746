#include "parallel/checkpoint.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/model_fixture.h"
#include "tests/run_ranks.h"

namespace grpo::parallel {
namespace {

using testing::RankContext;
using testing::TestModel;

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "grpo_ckpt_XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// A model with an fp32 state array beside its weights; the array's values follow from the weights.
struct Fixture {
  Fixture(RankContext& rank, World& world, const Mesh& mesh, const model::ModelConfig& config)
      : model(rank, config, make_training_groups(world, mesh, 16), DType::kBfloat16),
        master(rank.allocator, "master", DType::kFloat32, {model.store.num_owned_elements()}) {}

  void fill() {
    testing::fill_lively(model.store, 7);
    for (const OwnedSpan& span : model.store.owned_spans()) {
      for (int64_t i = 0; i < span.num_elements; ++i) {
        master.view().data<float>()[span.state_offset + i] =
            1.25f * static_cast<float>(span.weight.data<Bfloat16>()[i]);
      }
    }
  }

  CheckpointContent content() const {
    CheckpointContent content;
    add_weights(content, "weights", model.store);
    add_owned_state(content, model.store, {{.prefix = "master", .values = master}});
    sort_content(content);
    return content;
  }

  TestModel model;
  OwnedTensor master;
};

std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    files[entry.path().filename().string()] = text.str();
  }
  return files;
}

void save_at(const std::filesystem::path& folder, int gtp, int dp, const model::ModelConfig& config,
             int64_t bucket_bytes) {
  testing::run_ranks(gtp * dp, [&](World& world) {
    RankContext rank;
    Fixture fixture(rank, world, Mesh(1, gtp, dp), config);
    fixture.fill();
    save_checkpoint(
        folder, fixture.content(), {.step = 3, .state_json = "{\"a\": 1}", .add_files = {}},
        fixture.model.store.groups().world.communicator(), rank.allocator, bucket_bytes);
  });
}

class CheckpointLayouts : public ::testing::TestWithParam<std::pair<int, int>> {};

// K01, K02, R02: every logical element once, no padding, the same bytes from every layout.
TEST_P(CheckpointLayouts, FilesDependOnTheModelAlone) {
  const auto [gtp, dp] = GetParam();
  for (const bool tied : {true, false}) {
    const ScratchFolder scratch;
    const model::ModelConfig config = testing::odd_config(tied);
    save_at(scratch / "one", 1, 1, config, int64_t{1} << 20);
    save_at(scratch / "many", gtp, dp, config, 1000);
    const auto expected = files_of(scratch / "one");
    EXPECT_EQ(expected.size(), tied ? 5u : 6u);
    EXPECT_EQ(files_of(scratch / "many"), expected);
  }
}

TEST_P(CheckpointLayouts, ReadsWhatAnotherLayoutSaved) {
  const auto [gtp, dp] = GetParam();
  const ScratchFolder scratch;
  const model::ModelConfig config = testing::odd_config();
  save_at(scratch / "saved", 2, 1, config, int64_t{1} << 20);
  testing::run_ranks(gtp * dp, [&, num_gtp = gtp, num_dp = dp](World& world) {
    RankContext rank;
    Fixture expected(rank, world, Mesh(1, num_gtp, num_dp), config);
    expected.fill();
    Fixture actual(rank, world, Mesh(1, num_gtp, num_dp), config);
    load_checkpoint(scratch / "saved", actual.content());
    for (size_t i = 0; i < actual.model.store.specs().size(); ++i) {
      const Tensor a = actual.model.store.shard(static_cast<ParameterId>(i));
      const Tensor e = expected.model.store.shard(static_cast<ParameterId>(i));
      ASSERT_EQ(std::memcmp(a.raw(), e.raw(), e.size_bytes()), 0) << i;
    }
    const Tensor a = actual.master;
    const Tensor e = expected.master;
    ASSERT_EQ(std::memcmp(a.raw(), e.raw(), e.size_bytes()), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(GtpAndDp, CheckpointLayouts,
                         ::testing::Values(std::pair(2, 1), std::pair(3, 1), std::pair(4, 1),
                                           std::pair(2, 2), std::pair(1, 3)));

// A save that dies before its manifest leaves no checkpoint, and the next save of that step
// replaces its remains.
TEST(Checkpoint, WithoutManifestIsNoCheckpoint) {
  const ScratchFolder scratch;
  save_at(scratch / "step_3", 1, 1, testing::even_config(), int64_t{1} << 20);
  ASSERT_EQ(finished_checkpoints(scratch / "").size(), 1u);
  EXPECT_EQ(read_manifest(scratch / "step_3").step, 3);
  std::filesystem::remove(scratch / "step_3/manifest.json");
  std::ofstream(scratch / "step_3/stray.tmp") << "half";
  EXPECT_TRUE(finished_checkpoints(scratch / "").empty());
  EXPECT_THROW(read_manifest(scratch / "step_3"), DataError);
  save_at(scratch / "step_3", 2, 1, testing::even_config(), int64_t{1} << 20);
  EXPECT_EQ(finished_checkpoints(scratch / "").size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(scratch / "step_3/stray.tmp"));
}

TEST(Checkpoint, DamageAndOtherModelsAreNamed) {
  const ScratchFolder scratch;
  save_at(scratch / "saved", 1, 1, testing::odd_config(), int64_t{1} << 20);
  const auto load = [&](const model::ModelConfig& config) {
    testing::run_ranks(1, [&](World& world) {
      RankContext rank;
      Fixture fixture(rank, world, Mesh(1, 1, 1), config);
      load_checkpoint(scratch / "saved", fixture.content());
    });
  };
  EXPECT_NO_THROW(load(testing::odd_config()));
  EXPECT_THROW(load(testing::even_config()), DataError);
  EXPECT_THROW(load(testing::odd_config(false)), DataError);
  std::filesystem::resize_file(scratch / "saved/layer_00001.safetensors", 4000);
  try {
    load(testing::odd_config());
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("layer_00001.safetensors"), std::string::npos);
  }
}

}  // namespace
}  // namespace grpo::parallel
