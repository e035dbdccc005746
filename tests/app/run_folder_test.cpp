// The program's runs in one folder, one after the other and beside each other: what each of them
// says, returns and leaves.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "app/commands/export_command.h"
#include "app/commands/generate_command.h"
#include "app/commands/score_command.h"
#include "app/commands/train_command.h"
#include "app/output/run_lock.h"
#include "app/text/error_line.h"
#include "model/core/errors.h"
#include "tests/app/scratch_folder.h"
#include "tests/app/source_folder_test.h"

namespace grpo::app {
namespace {

using testing::ScratchFolder;

struct Outcome {
  int exit_code;
  std::string output;
  std::string errors;
};

class RunFolder : public SourceFolderTest {
 protected:
  RunFolder() : SourceFolderTest(GRPO_SOURCE_DIR) {}

  TrainOptions options(const std::vector<std::string>& overrides,
                       const std::optional<std::string>& resume) const {
    TrainOptions options;
    options.config_path = "configs/demo_gtp2.yaml";
    options.resume = resume;
    options.overrides = {"grpo.num_prompts_per_step=4",   "grpo.num_generations_per_prompt=2",
                         "grpo.max_num_steps=2",          "policy.train_global_batch_size=8",
                         "warm_start.num_steps=1",        "warm_start.global_batch_size=8",
                         "checkpointing.enabled=true",    "checkpointing.save_period=1",
                         "logger.num_samples_to_print=0", "logger.log_dir=" + log_dir()};
    options.overrides.insert(options.overrides.end(), overrides.begin(), overrides.end());
    return options;
  }

  // In a process of its own, as main() does it.
  Outcome train(const std::vector<std::string>& overrides = {},
                const std::optional<std::string>& resume = std::nullopt) const {
    const pid_t process = start(overrides, resume);
    return finish(process);
  }

  pid_t start(const std::vector<std::string>& overrides,
              const std::optional<std::string>& resume) const {
    const pid_t process = ::fork();
    if (process != 0) return process;
    const bool redirected =
        std::freopen((folder_.path() + "/output").c_str(), "w", stdout) != nullptr &&
        std::freopen((folder_.path() + "/errors").c_str(), "w", stderr) != nullptr;
    int code = redirected ? 0 : 99;
    try {
      if (redirected) code = run_train(options(overrides, resume));
    } catch (const Error& error) {
      print_error(error.what());
      code = static_cast<int>(error.exit_code());
    }
    std::fflush(nullptr);
    ::_exit(code);
  }

  Outcome finish(pid_t process) const {
    int status = 0;
    ::waitpid(process, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), folder_.read("output"),
            folder_.read("errors")};
  }

  std::string log_dir() const { return folder_.path() + "/run"; }
  std::filesystem::path checkpoint(int step) const {
    return log_dir() + "/checkpoints/step_" + std::to_string(step);
  }

  const ScratchFolder folder_;
};

int64_t num_lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)
#define ASSERT_HAS(text, part) ASSERT_NE((text).find(part), std::string::npos) << (text)

TEST_F(RunFolder, SaysWhereItStarts) {
  Outcome run = train({}, "auto");
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_HAS(run.output, "no finished checkpoint in " + log_dir() + "/checkpoints, starting fresh");
  EXPECT_EQ(num_lines(folder_.read("run/metrics.jsonl")), 3);
  EXPECT_HAS(folder_.read("run/metrics.jsonl"), "timing/train/checkpointing");
  const std::string finished = folder_.read("run/metrics.jsonl");
  for (const char* steps : {"1", "2"}) {
    run = train({std::string("grpo.max_num_steps=") + steps}, "auto");
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    EXPECT_HAS(run.output, "nothing is left to do: " + checkpoint(2).string() +
                               " is of step 2, grpo.max_num_steps is " + steps);
    EXPECT_EQ(folder_.read("run/metrics.jsonl"), finished);
  }
  run = train({"grpo.max_num_steps=3"}, checkpoint(1).string());
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_HAS(run.output, "resuming from step 1 of " + checkpoint(1).string());
  EXPECT_HAS(run.output, "step_2 is now step_2.replaced");
  EXPECT_TRUE(std::filesystem::exists(checkpoint(2)));
  EXPECT_FALSE(std::filesystem::exists(checkpoint(2).string() + ".replaced"));
  EXPECT_EQ(num_lines(folder_.read("run/metrics.jsonl")), 4);
  EXPECT_TRUE(std::filesystem::exists(checkpoint(3)));
}

TEST_F(RunFolder, IsRefusedWhileAnotherRunIsThere) {
  const RunLock lock("logger.log_dir", log_dir());
  for (const std::optional<std::string>& resume :
       {std::optional<std::string>(), std::optional<std::string>("auto")}) {
    const Outcome run = train({}, resume);
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_EQ(num_lines(run.errors), 1) << run.errors;
    EXPECT_HAS(run.errors, "logger.log_dir " + log_dir() + " is in use by another run (process ");
    EXPECT_FALSE(std::filesystem::exists(log_dir() + "/metrics.jsonl"));
  }
}

TEST_F(RunFolder, KeepsTheEarlierRunWhenSetupFails) {
  ASSERT_EQ(train().exit_code, 0);
  const std::string metrics = folder_.read("run/metrics.jsonl");
  // Found by both ranks, and by one of them alone while the other is done with its setup.
  folder_.write("bad.jsonl", "{\"question\": \"1+1=\"}\n");
  const Outcome run =
      train({"logger.overwrite=true", "data.train.path=" + folder_.path() + "/bad.jsonl"});
  EXPECT_EQ(run.exit_code, 3) << run.errors;
  EXPECT_EQ(num_lines(run.errors), 1) << run.errors;
  EXPECT_EQ(folder_.read("run/metrics.jsonl"), metrics);
  EXPECT_TRUE(std::filesystem::exists(log_dir() + "/samples/step_2.jsonl"));
  EXPECT_TRUE(std::filesystem::exists(checkpoint(2)));
  // A fresh run does not mix its checkpoints with another run's.
  std::filesystem::remove(log_dir() + "/metrics.jsonl");
  const Outcome fresh = train();
  EXPECT_EQ(fresh.exit_code, 2);
  EXPECT_HAS(fresh.errors, checkpoint(2).string() + " is of an earlier run; allowed: ");
  EXPECT_EQ(train({"logger.overwrite=true", "grpo.max_num_steps=1"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(checkpoint(1).string() + ".replaced"));
  EXPECT_TRUE(std::filesystem::exists(checkpoint(2).string() + ".replaced"));
}

TEST_F(RunFolder, AFullDiskIsOneLineAndKeepsTheLastCheckpoint) {
  ASSERT_EQ(train({"grpo.max_num_steps=1"}).exit_code, 0);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  for (const auto& [num_bytes, file] :
       {std::pair<rlim_t, std::string>(100'000, "checkpoints/step_2/"),
        std::pair<rlim_t, std::string>(3000, "run/")}) {
    const rlimit small{num_bytes, limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const Outcome run = train({}, "auto");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_EQ(run.exit_code, 3);
    EXPECT_EQ(num_lines(run.errors), 1) << run.errors;
    EXPECT_HAS(run.errors, file);
    EXPECT_HAS(run.errors, "File too large");
    EXPECT_FALSE(std::filesystem::exists(checkpoint(2) / "manifest.json"));
  }
  ::signal(SIGXFSZ, handler);
  const Outcome run = train({}, "auto");
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_HAS(run.output, "resuming from step 1");
  EXPECT_TRUE(std::filesystem::exists(checkpoint(2) / "manifest.json"));
}

TEST_F(RunFolder, AnUnusableFolderIsNamedByItsKey) {
  folder_.write("file", "");
  const Outcome run = train({"logger.log_dir=" + folder_.path() + "/file/run"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_EQ(run.errors, "grpo_train: error: logger.log_dir " + folder_.path() +
                            "/file/run: cannot be made: Not a directory\n");
}

// However often it is asked to stop, and whatever the ranks are doing, it saves and says 75.
TEST_F(RunFolder, RepeatedSignalsSaveOnce) {
  const pid_t process =
      start({"grpo.max_num_steps=100000", "checkpointing.save_period=100000"}, std::nullopt);
  while (folder_.read("run/metrics.jsonl").find("\"step\": 2") == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  int status = 0;
  for (int i = 0; ::waitpid(process, &status, WNOHANG) == 0; ++i) {
    ::kill(process, i % 2 == 0 ? SIGTERM : SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 75) << folder_.read("errors");
  EXPECT_EQ(folder_.read("errors"), "");
}

TEST_F(RunFolder, ASignalInTheWarmStartSavesIt) {
  const pid_t process = start({"warm_start.num_steps=100000"}, std::nullopt);
  while (folder_.read("output").find("] model custom") == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ::kill(process, SIGTERM);
  Outcome run = finish(process);
  EXPECT_EQ(run.exit_code, 75) << run.errors;
  EXPECT_HAS(run.output, "stopped by a signal after 0 of 2 steps");
  EXPECT_EQ(folder_.read("run/metrics.jsonl"), "");
  const std::string saved = "the warm start is saved after ";
  ASSERT_HAS(run.output, saved);
  const int num_done = std::stoi(run.output.substr(run.output.find(saved) + saved.size()));

  // Again from the same checkpoint, when its run has logged steps: they are logged anew.
  for (const std::string& resume : {std::string("auto"), checkpoint(0).string()}) {
    run = train({fmt::format("warm_start.num_steps={}", num_done + 2)}, resume);
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    EXPECT_HAS(run.output, "resuming from step 0 of " + checkpoint(0).string());
    EXPECT_HAS(run.output,
               fmt::format("the warm start goes on after {} of {} steps", num_done, num_done + 2));
    EXPECT_HAS(run.output, fmt::format("warm start {0}/{0}: ", num_done + 2));
    EXPECT_EQ(num_lines(folder_.read("run/metrics.jsonl")), 3);
    EXPECT_TRUE(std::filesystem::exists(checkpoint(2)));
  }
}

}  // namespace
}  // namespace grpo::app
