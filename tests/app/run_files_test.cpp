#include "app/output/run_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/core/errors.h"
#include "tests/app/scratch_folder.h"

namespace grpo::app {
namespace {

using testing::ScratchFolder;

rl::MetricSet metrics_of(const std::vector<std::pair<std::string, double>>& values) {
  rl::MetricSet metrics;
  for (const auto& [name, value] : values) metrics.set(name, value);
  return metrics;
}

rl::SampleBatch batch_of(std::vector<std::string> lines) {
  const size_t count = lines.size();
  return {.lines = std::move(lines), .num_recorded = count, .kept_tokens = {}};
}

std::string unpacked(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  std::string text(size_t{8} << 20, '\0');
  const int count = gzread(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return text.substr(0, static_cast<size_t>(std::max(count, 0)));
}

TEST(RunFiles, MetricsAreALineAStepAndASeriesAMetric) {
  const ScratchFolder folder;
  RunFiles files(folder.path() + "/a/b", {});
  files.write_step(0, metrics_of({{"timing/setup/total", 0.5}}));
  files.write_step(1,
                   metrics_of({{"train/loss", 0.1 + 0.2}, {"train/token_mult_prob_error", 1.0}}));
  files.write_step(2, metrics_of({{"train/loss", 1e-7}, {"train/lr", 1e-6}}));
  EXPECT_EQ(
      folder.read("a/b/metrics.jsonl"),
      "{\"step\": 0, \"timing/setup/total\": 0.5}\n"
      "{\"step\": 1, \"train/loss\": 0.30000000000000004, \"train/token_mult_prob_error\": 1}\n"
      "{\"step\": 2, \"train/loss\": 1e-07, \"train/lr\": 1e-06}\n");
  const auto json = nlohmann::json::parse(folder.read("a/b/metrics.json"));
  EXPECT_EQ(json.size(), 4u);
  EXPECT_EQ(json["train/loss"]["1"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(json["train/loss"]["2"].get<double>(), 1e-7);
  EXPECT_EQ(json["train/loss"].size(), 2u);
  EXPECT_EQ(json["train/lr"].size(), 1u);
  EXPECT_EQ(json["timing/setup/total"]["0"], 0.5);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/a/b")) {
    EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
  }
}

TEST(RunFiles, NonFiniteNumbersStayVisibleInValidJson) {
  const ScratchFolder folder;
  RunFiles files(folder.path(), {});
  const double inf = std::numeric_limits<double>::infinity();
  files.write_step(
      1, metrics_of({{"a", std::nan("")}, {"b", inf}, {"c", -inf}, {"odd \"name\"", 5e-324}}));
  const auto line = nlohmann::json::parse(folder.read("metrics.jsonl"));
  EXPECT_EQ(line["a"], "nan");
  EXPECT_EQ(line["b"], "inf");
  EXPECT_EQ(line["c"], "-inf");
  EXPECT_EQ(line["odd \"name\""].get<double>(), 5e-324);
  EXPECT_EQ(nlohmann::json::parse(folder.read("metrics.json"))["a"]["1"], "nan");
}

TEST(RunFiles, SamplesOfEachStepHaveTheirFile) {
  const ScratchFolder folder;
  RunFiles files(folder.path(), {});
  files.write_samples(1, batch_of({"{\"a\":1}", "{\"a\":2}"}), false);
  files.write_samples(2, batch_of({"{\"a\":3}"}), false);
  EXPECT_EQ(folder.read("samples/step_1.jsonl"), "{\"a\":1}\n{\"a\":2}\n");
  EXPECT_EQ(folder.read("samples/step_2.jsonl"), "{\"a\":3}\n");
}

TEST(RunFiles, OnlyRecordedSamplesAreStored) {
  const ScratchFolder folder;
  RunFiles files(folder.path(), {});
  rl::SampleBatch batch = batch_of({"{\"a\":1}", "{\"a\":2}"});
  batch.num_recorded = 1;
  files.write_samples(1, batch, false);
  batch.num_recorded = 0;
  files.write_samples(2, batch, false);
  EXPECT_EQ(folder.read("samples/step_1.jsonl"), "{\"a\":1}\n");
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/samples/step_2.jsonl"));
}

TEST(RunFiles, CompressedSamplesAreGzip) {
  const ScratchFolder folder;
  RunFiles files(folder.path(), {});
  rl::SampleBatch batch = batch_of({"{\"a\":1}"});
  batch.kept_tokens.assign(3 << 20, std::byte{7});
  files.write_samples(1, batch, true);
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/samples/step_1.jsonl"));
  EXPECT_EQ(unpacked(folder.path() + "/samples/step_1.jsonl.gz"), "{\"a\":1}\n");
  EXPECT_EQ(unpacked(folder.path() + "/samples/step_1.kept"), std::string(3 << 20, '\7'));
  // Equal content gives equal files.
  const std::string first = folder.read("samples/step_1.kept");
  files.write_samples(2, batch, true);
  EXPECT_EQ(folder.read("samples/step_2.kept"), first);
}

TEST(RunFiles, AnEarlierRunIsKeptUnlessOverwriteIsSet) {
  const ScratchFolder folder;
  {
    RunFiles files(folder.path(), {});
    files.write_config("grpo: {}\n");
    files.write_step(1, metrics_of({{"a", 1}}));
    files.write_samples(7, batch_of({"{}"}), false);
  }
  folder.write("samples/mine.txt", "kept");
  try {
    RunFiles again(folder.path(), {});
    FAIL() << "a used log_dir was taken";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(folder.path()), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("logger.overwrite=true"), std::string::npos);
  }
  EXPECT_EQ(folder.read("metrics.jsonl"), "{\"step\": 1, \"a\": 1}\n");
  RunFiles again(folder.path(), {.overwrite = true, .continue_after = std::nullopt});
  again.write_step(1, metrics_of({{"a", 2}}));
  EXPECT_EQ(folder.read("metrics.jsonl"), "{\"step\": 1, \"a\": 2}\n");
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/samples/step_7.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/config.yaml"));
  EXPECT_EQ(folder.read("samples/mine.txt"), "kept");
}

// What a run leaves that failed before its first line.
TEST(RunFiles, AnEmptyMetricsFileIsNoEarlierRun) {
  const ScratchFolder folder;
  folder.write("metrics.jsonl", "");
  EXPECT_NO_THROW(refuse_used_log_dir(folder.path(), false));
  folder.write("metrics.jsonl", "{\"step\": 0}\n");
  EXPECT_THROW(refuse_used_log_dir(folder.path(), false), ConfigError);
}

TEST(RunFiles, AFolderThatCannotBeMadeIsNamedByItsKey) {
  const ScratchFolder folder;
  folder.write("file", "");
  try {
    RunFiles files(folder.path() + "/file/run", {});
    FAIL() << "a folder inside a file";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("logger.log_dir"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("Not a directory"), std::string::npos) << error.what();
  }
}

// A setup that fails leaves the earlier run as it was, whatever this one was allowed to do.
TEST(RunFiles, NothingChangesBeforeTheFirstWrite) {
  const ScratchFolder folder;
  const std::string lines = "{\"step\": 0}\n{\"step\": 1, \"a\": 1}\n{\"step\": 2, \"a\": 2}\n";
  folder.write("metrics.jsonl", lines);
  for (const char* name : {"metrics.json", "config.yaml", "samples/step_2.jsonl"})
    folder.write(name, "old");
  for (const EarlierRun& earlier : {EarlierRun{.overwrite = true, .continue_after = std::nullopt},
                                    EarlierRun{.overwrite = false, .continue_after = 1}}) {
    { const RunFiles files(folder.path(), earlier); }
    EXPECT_EQ(folder.read("metrics.jsonl"), lines);
    for (const char* name : {"metrics.json", "config.yaml", "samples/step_2.jsonl"}) {
      EXPECT_EQ(folder.read(name), "old") << name;
    }
  }
}

// Files of at most `num_bytes` while it lives: what a full disk does in the middle of a write.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t num_bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit small{num_bytes, limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit limit_{};
};

TEST(TextFile, NoPartOfALineThatDidNotFitStays) {
  const ScratchFolder folder;
  LineFile file(folder.path() + "/lines");
  const SmallDisk disk(10);
  file.write_line("12345");
  EXPECT_THROW(file.write_line("67890"), DataError);
  EXPECT_EQ(folder.read("lines"), "12345\n");
}

TEST(TextFile, AFullDiskIsADataErrorNamingTheFile) {
  LineFile file("/dev/full");
  try {
    file.write_line("{}");
    FAIL() << "written to a full disk";
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "/dev/full: cannot be written: No space left on device");
  }
}

// A private pipe stands for every device.
TEST(TextFile, APipeIsNotReplacedAndALinkIsFollowed) {
  const ScratchFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(write_whole_file(pipe, "new"), DataError);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  const std::string target = folder.write("target", "old");
  std::filesystem::create_symlink(target, folder.path() + "/link");
  write_whole_file(folder.path() + "/link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() + "/link"));
  EXPECT_EQ(folder.read("target"), "new");
}

TEST(TextFile, AWholeFileThatCannotBeWrittenLeavesTheOldOne) {
  const ScratchFolder folder;
  const std::string path = folder.write("metrics.json", "old");
  {
    const SmallDisk disk(2);
    EXPECT_THROW(write_whole_file(path, "new"), DataError);
  }
  EXPECT_EQ(folder.read("metrics.json"), "old");
  write_whole_file(path, "new");
  EXPECT_EQ(folder.read("metrics.json"), "new");
  EXPECT_THROW(write_whole_file(folder.path() + "/none/x", "new"), DataError);
}

// A resumed run keeps the steps up to its checkpoint and appends; half a last line is what a killed
// run leaves.
TEST(RunFiles, ContinuesAnEarlierRun) {
  const ScratchFolder folder;
  rl::MetricSet metrics;
  metrics.set("train/loss", 0.1);
  metrics.set("train/odd", std::numeric_limits<double>::quiet_NaN());
  std::string before;
  {
    RunFiles files(folder.path(), {});
    for (int64_t step = 0; step <= 2; ++step) files.write_step(step, metrics);
    before = folder.read("metrics.json");
    files.write_step(3, metrics);
    for (int64_t step = 1; step <= 3; ++step) files.write_samples(step, batch_of({"{}"}), false);
  }
  folder.append("metrics.jsonl", "{\"step\": 4, \"tra");
  folder.write("metrics.json.partial-7-0", "half");
  RunFiles files(folder.path(), {.overwrite = false, .continue_after = 2});
  EXPECT_TRUE(files.warnings().empty());
  files.write_step(3, metrics);
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/metrics.json.partial-7-0"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/samples/step_3.jsonl"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/samples/step_2.jsonl"));
  EXPECT_EQ(folder.read("metrics.jsonl"),
            "{\"step\": 0, \"train/loss\": 0.1, \"train/odd\": \"nan\"}\n"
            "{\"step\": 1, \"train/loss\": 0.1, \"train/odd\": \"nan\"}\n"
            "{\"step\": 2, \"train/loss\": 0.1, \"train/odd\": \"nan\"}\n"
            "{\"step\": 3, \"train/loss\": 0.1, \"train/odd\": \"nan\"}\n");
  EXPECT_NE(folder.read("metrics.json"), before);
  EXPECT_NE(folder.read("metrics.json").find("\"2\": 0.1, \"3\": 0.1}"), std::string::npos);
}

TEST(RunFiles, DamagedMetricsAreNotContinued) {
  const ScratchFolder folder;
  folder.append("metrics.jsonl", "{\"step\": 1}\nnonsense\n{\"step\": 2}\n");
  try {
    RunFiles files(folder.path(), {.overwrite = false, .continue_after = 2});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("metrics.jsonl:2"), std::string::npos) << error.what();
  }
}

// Two runs that wrote at once; a step is said once.
TEST(RunFiles, StepsOutOfOrderAreNotContinued) {
  for (const char* lines : {"{\"step\": 1}\n{\"step\": 2}\n{\"step\": 2}\n{\"step\": 3}\n",
                            "{\"step\": 1}\n{\"step\": 3}\n{\"step\": 2}\n"}) {
    const ScratchFolder folder;
    folder.write("metrics.jsonl", lines);
    try {
      RunFiles files(folder.path(), {.overwrite = false, .continue_after = 3});
      FAIL();
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("metrics.jsonl:3: step 2 after step "),
                std::string::npos)
          << error.what();
    }
  }
}

// Lines that a loss of power took: the run goes on, and says which are gone.
TEST(RunFiles, MissingStepsAreSaid) {
  const ScratchFolder folder;
  folder.write("metrics.jsonl", "{\"step\": 0}\n{\"step\": 1}\n{\"step\": 4}\n{\"step\": 5}\n");
  const RunFiles files(folder.path(), {.overwrite = false, .continue_after = 7});
  ASSERT_EQ(files.warnings().size(), 2u);
  EXPECT_NE(files.warnings()[0].find("metrics.jsonl:3: steps 2 to 3 are missing before it"),
            std::string::npos);
  EXPECT_NE(files.warnings()[1].find("steps 6 to 7 are missing, the checkpoint is of step 7"),
            std::string::npos);
  const RunFiles shorter(folder.path(), {.overwrite = false, .continue_after = 1});
  EXPECT_TRUE(shorter.warnings().empty());
}

}  // namespace
}  // namespace grpo::app
