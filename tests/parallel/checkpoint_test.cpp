#include "parallel/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "model/core/host_transfer.h"
#include "tests/model_fixture.h"
#include "tests/run_ranks.h"
#include "tests/temporary_folder.h"

namespace grpo::parallel {
namespace {

using testing::RankContext;
using testing::TemporaryFolder;
using testing::TestModel;

// A model with an fp32 state array beside its weights; the array's values follow from the weights.
struct Fixture {
  Fixture(RankContext& rank, World& world, const Mesh& mesh, const model::ModelConfig& config)
      : model(rank, config, make_training_groups(world, mesh, 16), DType::kBfloat16),
        master(rank.allocator, "master", DType::kFloat32, {model.store.num_owned_elements()}) {}

  void fill() {
    testing::fill_lively(model.store, 7);
    HostDraft masters(master);
    for (const OwnedSpan& span : model.store.owned_spans()) {
      const HostCopy weights(span.weight);
      for (int64_t i = 0; i < span.num_elements; ++i) {
        masters.view().data<float>()[span.state_offset + i] =
            1.25f * static_cast<float>(weights.view().data<Bfloat16>()[i]);
      }
    }
    masters.commit();
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
    RankContext rank(world);
    Fixture fixture(rank, world, Mesh(1, gtp, dp), config);
    fixture.fill();
    save_checkpoint(folder, fixture.content(), {.step = 3, .state_json = "{\"a\": 1}"},
                    fixture.model.store.groups().world.communicator(), rank.allocator,
                    bucket_bytes);
  });
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return std::ranges::equal(HostCopy(a).bytes(), HostCopy(b).bytes());
}

class CheckpointLayouts : public ::testing::TestWithParam<std::pair<int, int>> {};

// K01, K02, R02: every logical element once, no padding, the same bytes from every layout.
TEST_P(CheckpointLayouts, FilesDependOnTheModelAlone) {
  const auto [gtp, dp] = GetParam();
  for (const bool tied : {true, false}) {
    const TemporaryFolder scratch;
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
  const TemporaryFolder scratch;
  const model::ModelConfig config = testing::odd_config();
  save_at(scratch / "saved", 2, 1, config, int64_t{1} << 20);
  testing::run_ranks(gtp * dp, [&, num_gtp = gtp, num_dp = dp](World& world) {
    RankContext rank(world);
    Fixture expected(rank, world, Mesh(1, num_gtp, num_dp), config);
    expected.fill();
    Fixture actual(rank, world, Mesh(1, num_gtp, num_dp), config);
    load_checkpoint(scratch / "saved", actual.content());
    for (size_t i = 0; i < actual.model.store.specs().size(); ++i) {
      const Tensor a = actual.model.store.shard(static_cast<ParameterId>(i));
      const Tensor e = expected.model.store.shard(static_cast<ParameterId>(i));
      ASSERT_TRUE(same_bytes(a, e)) << i;
    }
    const Tensor a = actual.master;
    const Tensor e = expected.master;
    ASSERT_TRUE(same_bytes(a, e));
  });
}

INSTANTIATE_TEST_SUITE_P(GtpAndDp, CheckpointLayouts,
                         ::testing::Values(std::pair(2, 1), std::pair(3, 1), std::pair(4, 1),
                                           std::pair(2, 2), std::pair(1, 3)));

// A save that dies before its manifest leaves no checkpoint, and the next save of that step
// replaces its remains.
TEST(Checkpoint, WithoutManifestIsNoCheckpoint) {
  const TemporaryFolder scratch;
  save_at(scratch / "step_3", 1, 1, testing::even_config(), int64_t{1} << 20);
  ASSERT_EQ(finished_checkpoints(scratch / "").size(), 1u);
  EXPECT_EQ(read_manifest(scratch / "step_3").step, 3);
  EXPECT_FALSE(std::filesystem::exists(scratch / "step_3/unfinished"));
  std::filesystem::rename(scratch / "step_3/manifest.json", scratch / "step_3/unfinished");
  std::ofstream(scratch / "step_3/stray.tmp") << "half";
  EXPECT_TRUE(finished_checkpoints(scratch / "").empty());
  EXPECT_THROW(read_manifest(scratch / "step_3"), DataError);
  save_at(scratch / "step_3", 2, 1, testing::even_config(), int64_t{1} << 20);
  EXPECT_EQ(finished_checkpoints(scratch / "").size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(scratch / "step_3/stray.tmp"));
}

// What is not ours is neither removed nor written into.
TEST(Checkpoint, OnlyRemainsOfSavesAreRemoved) {
  const TemporaryFolder scratch;
  std::filesystem::create_directories(scratch / "step_3");
  std::ofstream(scratch / "step_3/weights.bin") << "another program's";
  std::filesystem::create_directories(scratch / "step_4");
  std::ofstream(scratch / "step_4/unfinished") << "";
  std::ofstream(scratch / "step_4/head.safetensors.partial-1-2") << "half";
  std::filesystem::create_directories(scratch / "step_5");
  remove_unfinished_checkpoints(scratch / "");
  EXPECT_FALSE(std::filesystem::exists(scratch / "step_4"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "step_5"));
  EXPECT_THROW(save_at(scratch / "step_3", 2, 1, testing::even_config(), 1000), DataError);
  EXPECT_EQ(files_of(scratch / "step_3").size(), 1u);
}

// Names in the order in which they were deleted from a folder.
class DeletionOrder {
 public:
  explicit DeletionOrder(const std::filesystem::path& folder)
      : descriptor_(::inotify_init1(IN_NONBLOCK)) {
    EXPECT_GE(::inotify_add_watch(descriptor_, folder.c_str(), IN_DELETE), 0);
  }
  ~DeletionOrder() { ::close(descriptor_); }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    alignas(inotify_event) char buffer[1 << 16];
    for (ssize_t size; (size = ::read(descriptor_, buffer, sizeof(buffer))) > 0;) {
      for (ssize_t at = 0; at < size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
        if (event->len > 0) names.emplace_back(event->name);
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      }
    }
    return names;
  }

 private:
  int descriptor_;
};

// Killed at any point, a removal leaves nothing that looks whole, and nothing that is not
// recognised: the marker goes last, in whatever order the folder lists its files.
TEST(Checkpoint, ARemovalKeepsTheMarkerToItsEnd) {
  for (const bool manifest_comes_first : {true, false}) {
    const TemporaryFolder scratch;
    std::filesystem::create_directories(scratch / "step_3");
    if (manifest_comes_first) std::ofstream(scratch / "step_3/manifest.json") << "{}";
    for (int i = 0; i < 50; ++i)
      std::ofstream(scratch / ("step_3/file_" + std::to_string(i))) << "x";
    if (!manifest_comes_first) std::ofstream(scratch / "step_3/manifest.json") << "{}";
    const DeletionOrder order(scratch / "step_3");
    remove_checkpoint(scratch / "step_3");
    const std::vector<std::string> names = order.names();
    ASSERT_EQ(names.size(), 51u);
    EXPECT_EQ(names.back(), "unfinished");
    EXPECT_FALSE(std::filesystem::exists(scratch / "step_3"));
  }
}

// A rank's disk refuses in the middle: no manifest, none of that rank's files, and the earlier
// checkpoint as it was.
TEST(Checkpoint, AFailedSaveLeavesTheEarlierOne) {
  const TemporaryFolder scratch;
  save_at(scratch / "step_3", 2, 1, testing::even_config(), 1000);
  const auto before = files_of(scratch / "step_3");
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  // Room for the files of rank 0 and 1 that come first, not for the layers.
  const rlimit small{before.at("embedding.safetensors").size(), limit.rlim_max};
  ASSERT_GT(before.at("layer_00000.safetensors").size(), small.rlim_cur);
  ASSERT_GT(small.rlim_cur, before.at("final_norm.safetensors").size());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(save_at(scratch / "step_4", 2, 1, testing::even_config(), 1000), DataError);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(finished_checkpoints(scratch / ""), std::vector{scratch / "step_3"});
  EXPECT_EQ(files_of(scratch / "step_3"), before);
  const auto left = files_of(scratch / "step_4");
  EXPECT_EQ(left.size(), 1u) << left.rbegin()->first;
  EXPECT_TRUE(left.contains("unfinished"));
}

void flip_byte(const std::filesystem::path& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(offset);
  file.put(byte);
}

std::string read_error(const std::filesystem::path& folder) {
  try {
    const CheckpointManifest manifest = read_manifest(folder);
    return find_damage(folder, manifest).value_or("");
  } catch (const DataError& error) {
    return error.what();
  }
}

// K: one flipped bit anywhere, a cut-off or missing file, and an edited manifest are found before a
// tensor is used.
TEST(Checkpoint, DamageIsFoundByChecksum) {
  const TemporaryFolder scratch;
  const auto fresh = [&] {
    save_at(scratch / "c", 2, 1, testing::odd_config(), 1000);
    EXPECT_EQ(read_error(scratch / "c"), "");
  };
  fresh();
  for (const auto& [name, bytes] : files_of(scratch / "c")) {
    for (const size_t offset : {size_t{9}, bytes.size() / 2, bytes.size() - 2}) {
      flip_byte(scratch / "c" / name, static_cast<int64_t>(offset));
      EXPECT_NE(read_error(scratch / "c").find(name), std::string::npos)
          << name << " at " << offset;
      flip_byte(scratch / "c" / name, static_cast<int64_t>(offset));
    }
  }
  EXPECT_EQ(read_error(scratch / "c"), "");
  std::filesystem::resize_file(scratch / "c/layer_00001.safetensors", 4000);
  EXPECT_NE(
      read_error(scratch / "c").find("layer_00001.safetensors: 4000 bytes, the manifest says"),
      std::string::npos);
  std::filesystem::remove(scratch / "c/layer_00001.safetensors");
  EXPECT_NE(read_error(scratch / "c").find("layer_00001.safetensors: No such file"),
            std::string::npos);
  fresh();
  std::string text = files_of(scratch / "c").at("manifest.json");
  text.replace(text.find("\"step\": 3"), 9, "\"step\": 4");
  std::ofstream(scratch / "c/manifest.json") << text;
  EXPECT_NE(read_error(scratch / "c").find("manifest.json: damaged"), std::string::npos)
      << read_error(scratch / "c");
}

TEST(Checkpoint, RanksShareTheVerification) {
  const TemporaryFolder scratch;
  save_at(scratch / "c", 1, 1, testing::odd_config(), 1000);
  flip_byte(scratch / "c/layer_00001.safetensors", 3000);
  const CheckpointManifest manifest = read_manifest(scratch / "c");
  int num_found = 0;
  for (int part = 0; part < 3; ++part)
    num_found += find_damage(scratch / "c", manifest, part, 3).has_value() ? 1 : 0;
  EXPECT_EQ(num_found, 1);
}

std::string load_error(const std::filesystem::path& folder, const model::ModelConfig& config,
                       const std::function<void(CheckpointContent&)>& change = {},
                       Surplus surplus = Surplus::kRefuse) {
  std::string message;
  testing::run_ranks(1, [&](World& world) {
    RankContext rank(world);
    Fixture fixture(rank, world, Mesh(1, 1, 1), config);
    CheckpointContent content = fixture.content();
    if (change) change(content);
    try {
      load_checkpoint(folder, content, surplus);
    } catch (const DataError& error) {
      message = error.what();
    }
  });
  return message;
}

TEST(Checkpoint, SurplusIsRefused) {
  const TemporaryFolder scratch;
  const model::ModelConfig config = testing::odd_config();
  save_at(scratch / "c", 1, 1, config, int64_t{1} << 20);
  EXPECT_EQ(load_error(scratch / "c", config), "");
  model::ModelConfig shallow = config;
  shallow.num_layers -= 1;
  EXPECT_NE(load_error(scratch / "c", shallow).find("layer_00001.safetensors: has no place"),
            std::string::npos)
      << load_error(scratch / "c", shallow);
  const auto weights_only = [](CheckpointContent& content) {
    std::erase_if(content.pieces, [&](const CheckpointPiece& piece) {
      return content.tensors[piece.tensor].name.starts_with("master/");
    });
    for (CheckpointTensor& tensor : content.tensors) {
      if (tensor.name.starts_with("master/")) tensor.name = "weights/" + tensor.name.substr(7);
    }
  };
  EXPECT_NE(load_error(scratch / "c", config, weights_only).find("tensor 'master/"),
            std::string::npos);
  EXPECT_EQ(load_error(scratch / "c", config, weights_only, Surplus::kIgnore), "");
}

TEST(Checkpoint, ValuesThatAreNotFiniteAreRefused) {
  const TemporaryFolder scratch;
  testing::run_ranks(2, [&](World& world) {
    RankContext rank(world);
    Fixture fixture(rank, world, Mesh(1, 2, 1), testing::odd_config());
    fixture.fill();
    if (world.rank() == 1) {
      copy_from_host<float>(fixture.master.view().rows(5, 1),
                            std::vector<float>{std::numeric_limits<float>::infinity()});
    }
    save_checkpoint(scratch / "c", fixture.content(), {.step = 1, .state_json = "{}"},
                    fixture.model.store.groups().world.communicator(), rank.allocator);
  });
  const std::string message = load_error(scratch / "c", testing::odd_config());
  EXPECT_NE(message.find("tensor 'master/model."), std::string::npos) << message;
  EXPECT_NE(message.find("not finite at row "), std::string::npos) << message;
}

TEST(Checkpoint, DamageAndOtherModelsAreNamed) {
  const TemporaryFolder scratch;
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
