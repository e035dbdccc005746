// Ranks as processes: exit codes, signals, killed and stopped ranks.
#include "app/launch/local_ranks.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>
#include <thread>

#include "model/core/errors.h"
#include "parallel/comm/world.h"

namespace grpo::app {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

class LocalRanksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::alarm(60);  // a hang ends the program
    std::string pattern = (std::filesystem::temp_directory_path() / "grpo-ranks-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    ::alarm(0);
    std::filesystem::remove_all(folder_);
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / (name + ".part")) << text;
    std::filesystem::rename(folder_ / (name + ".part"), folder_ / name);
  }
  std::string read(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  // A rank's main: connects, runs fn, writes the message of its error to "said-<rank>", returns the
  // exit code.
  int run_world(const LaunchEnvironment& environment, milliseconds timeout,
                const std::function<int(parallel::World&, Communicator&)>& fn) const {
    std::unique_ptr<parallel::World> world;
    try {
      world = parallel::World::connect(
          {.rank = environment.rank,
           .size = environment.world_size,
           .store = parallel::make_file_store(rendezvous_folder(folder_, environment)),
           .host = environment.host,
           .timeout = timeout,
           .on_phase = environment.report_phase});
      std::vector<int> ranks(static_cast<size_t>(environment.world_size));
      std::iota(ranks.begin(), ranks.end(), 0);
      return fn(*world, *world->make_group(ranks, "all"));
    } catch (const Error& error) {
      if (world) world->record_failure(error);
      write(fmt::format("said-{}", environment.rank), error.what());
      return static_cast<int>(error.exit_code());
    }
  }

  std::filesystem::path folder_;
};

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "'" << (text) << "' lacks '" << (part) << "'"

TEST_F(LocalRanksTest, RunsAllRanksAndRemovesItsFolder) {
  const int code = run_local_ranks(3, folder_, [&](const LaunchEnvironment& environment) {
    return run_world(environment, seconds(30), [&](parallel::World& world, Communicator& group) {
      int64_t value = world.rank() + 1;
      group.all_reduce_sum(Tensor(&value, DType::kInt64, Shape{1}, Device::cpu()), Stream::none());
      write(fmt::format("sum-{}", world.rank()), std::to_string(value));
      return 0;
    });
  });
  EXPECT_EQ(code, 0);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(read(fmt::format("sum-{}", rank)), "6");
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".rendezvous"));
}

TEST_F(LocalRanksTest, OneRankRunsInThisProcess) {
  pid_t process = 0;
  const int code = run_local_ranks(1, folder_, [&](const LaunchEnvironment& environment) {
    process = ::getpid();
    EXPECT_EQ(environment.world_size, 1);
    return run_world(environment, seconds(30), [](parallel::World&, Communicator& group) {
      group.barrier();
      return 4;
    });
  });
  EXPECT_EQ(process, ::getpid());
  EXPECT_EQ(code, 4);
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".rendezvous"));
}

TEST_F(LocalRanksTest, TheFirstFailuresCodeIsTheRuns) {
  const int code = run_local_ranks(3, folder_, [&](const LaunchEnvironment& environment) {
    return run_world(environment, seconds(30), [](parallel::World& world, Communicator& group) {
      world.set_phase("setup", 0);
      if (world.rank() == 1) throw DataError("model.safetensors: not there");
      group.barrier();
      return 0;
    });
  });
  EXPECT_EQ(code, static_cast<int>(ExitCode::kData));
  EXPECT_EQ(read("said-0"),
            "rank 0: stopped because rank 1 failed in phase 'setup', step 0: model.safetensors: "
            "not there");
}

TEST_F(LocalRanksTest, AnErrorThatEscapesARankStopsTheOthers) {
  const int code = run_local_ranks(2, folder_, [&](const LaunchEnvironment& environment) {
    if (environment.rank == 0) throw ConfigError("config.yaml:3:1: unknown key");
    return run_world(environment, seconds(30), [](parallel::World&, Communicator&) { return 0; });
  });
  EXPECT_EQ(code, static_cast<int>(ExitCode::kConfig));
  EXPECT_CONTAINS(read("said-1"),
                  "stopped because rank 0 failed in phase 'setup', step 0: ended with exit code 2");
}

TEST_F(LocalRanksTest, AKilledRankEndsTheOthersWithinSeconds) {
  const auto start = Clock::now();
  ::testing::internal::CaptureStderr();
  const int code = run_local_ranks(3, folder_, [&](const LaunchEnvironment& environment) {
    return run_world(environment, seconds(60), [](parallel::World& world, Communicator& group) {
      world.set_phase("generation", 4);
      group.barrier();
      if (world.rank() == 2) ::raise(SIGKILL);
      group.barrier();
      return 0;
    });
  });
  EXPECT_EQ(code, static_cast<int>(ExitCode::kComm));
  EXPECT_LT(Clock::now() - start, seconds(5));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "grpo_train: error: rank 2, phase 'generation', step 4: killed by signal 9 (Killed)\n");
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(read(fmt::format("said-{}", rank)),
              fmt::format("rank {}: stopped because rank 2 failed in phase 'generation', step 4: "
                          "killed by signal 9 (Killed)",
                          rank));
  }
}

TEST_F(LocalRanksTest, AKilledRankIsNamedWithoutALauncherThatSaysSo) {
  // As under srun: nobody writes the failure for the dead rank.
  const int code = run_local_ranks(2, folder_, [&](const LaunchEnvironment& environment) {
    if (environment.rank == 1) {  // dies behind the launcher's back: its own child is the rank
      if (::fork() == 0) {
        run_world(environment, seconds(60), [](parallel::World&, Communicator& group) {
          group.barrier();
          ::raise(SIGKILL);
          return 0;
        });
      }
      ::wait(nullptr);
      ::sleep(6);
      return 0;
    }
    return run_world(environment, seconds(60), [](parallel::World&, Communicator& group) {
      group.barrier();
      group.barrier();
      return 0;
    });
  });
  EXPECT_EQ(code, static_cast<int>(ExitCode::kComm));
  EXPECT_CONTAINS(read("said-0"), "connection to rank 1 closed in barrier of group all");
}

// A stopped rank cannot end by itself: it gets no grace.
TEST_F(LocalRanksTest, AStoppedRankIsNamedAndEnded) {
  const auto start = Clock::now();
  ::testing::internal::CaptureStderr();
  const int code = run_local_ranks(
      3, folder_,
      [&](const LaunchEnvironment& environment) {
        return run_world(environment, seconds(2), [](parallel::World& world, Communicator& group) {
          world.set_phase("refit", 2);
          group.barrier();
          if (world.rank() == 1) ::raise(SIGSTOP);
          group.barrier();
          return 0;
        });
      },
      seconds(30));
  EXPECT_EQ(code, static_cast<int>(ExitCode::kComm));
  EXPECT_LT(Clock::now() - start, seconds(8));
  const std::string errors = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(errors.find("grpo_train: error: rank 1, phase 'refit', step 2: stopped by signal 19"),
            0u)
      << errors;
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
  for (const int rank : {0, 2}) {
    const std::string said = read(fmt::format("said-{}", rank));
    EXPECT_CONTAINS(said, "waited 2.0 s for rank 1 in barrier of group all");
    EXPECT_CONTAINS(said, "rank 1 waits for nobody");
    EXPECT_CONTAINS(said, "phase 'refit', step 2");
  }
}

TEST_F(LocalRanksTest, ARankThatIsLateAfterAFailureIsNamedAndEnded) {
  const auto start = Clock::now();
  ::testing::internal::CaptureStderr();
  const int code = run_local_ranks(
      2, folder_,
      [&](const LaunchEnvironment& environment) {
        environment.report_phase("rewards", 5);
        if (environment.rank == 0) return static_cast<int>(ExitCode::kData);
        ::signal(SIGTERM, SIG_IGN);
        ::sleep(40);
        return 0;
      },
      milliseconds(300));
  EXPECT_EQ(code, static_cast<int>(ExitCode::kData));
  EXPECT_LT(Clock::now() - start, seconds(5));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "grpo_train: error: rank 1, phase 'rewards', step 5: did not stop within 0.3 s of the "
            "first failure: "
            "terminated\n");
}

TEST_F(LocalRanksTest, AStoreThatCannotBeUsedDoesNotReplaceARanksCode) {
  for (const bool is_file_in_the_way : {false, true}) {
    const int code = run_local_ranks(2, folder_, [&](const LaunchEnvironment& environment) {
      if (environment.rank == 1) return 0;
      const auto folder = rendezvous_folder(folder_, environment);
      std::filesystem::remove_all(folder);
      if (is_file_in_the_way) std::ofstream(folder) << "x";
      return static_cast<int>(ExitCode::kData);
    });
    EXPECT_EQ(code, static_cast<int>(ExitCode::kData));
  }
}

// A signal to ranks that do not catch it: the user's wish, not a failure of communication.
TEST_F(LocalRanksTest, ASignalThatEndsTheRanksEndsTheRunWithOneLine) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    const auto outside = ::signal(signal, SIG_DFL);  // nohup ignores hangups
    ::testing::internal::CaptureStderr();
    const int code = run_local_ranks(3, folder_, [&](const LaunchEnvironment& environment) {
      ::signal(signal, SIG_DFL);
      write(fmt::format("ready-{}", environment.rank), "yes");
      while (read("ready-0") + read("ready-1") + read("ready-2") != "yesyesyes") ::usleep(1000);
      if (environment.rank == 0) ::kill(::getppid(), signal);
      ::sleep(40);
      return 0;
    });
    ::signal(signal, outside);
    EXPECT_EQ(code, static_cast<int>(ExitCode::kOther));
    const std::string errors = ::testing::internal::GetCapturedStderr();
    EXPECT_CONTAINS(errors, fmt::format("phase 'setup', step 0: ended by signal {} (", signal));
    EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
    EXPECT_FALSE(std::filesystem::exists(folder_ / ".rendezvous"));
  }
}

TEST_F(LocalRanksTest, SignalsReachEveryRank) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    const int code = run_local_ranks(3, folder_, [&](const LaunchEnvironment& environment) {
      sigset_t awaited;
      sigemptyset(&awaited);
      sigaddset(&awaited, signal);
      pthread_sigmask(SIG_BLOCK, &awaited, nullptr);
      return run_world(environment, seconds(30), [&](parallel::World& world, Communicator& group) {
        group.barrier();
        if (world.rank() == 0) ::kill(::getppid(), signal);
        const timespec limit{20, 0};
        const bool came = sigtimedwait(&awaited, nullptr, &limit) == signal;
        group.barrier();
        return came ? static_cast<int>(ExitCode::kSavedAfterSignal) : 1;
      });
    });
    EXPECT_EQ(code, static_cast<int>(ExitCode::kSavedAfterSignal)) << "signal " << signal;
  }
}

TEST_F(LocalRanksTest, AnAgreedEndLeavesOthersTheirTime) {
  for (const auto exit_code : {ExitCode::kGate, ExitCode::kSavedAfterSignal}) {
    std::filesystem::remove(folder_ / "finished");
    const int code = run_local_ranks(
        2, folder_,
        [&](const LaunchEnvironment& environment) {
          if (environment.rank == 0) {
            std::this_thread::sleep_for(milliseconds(700));
            write("finished", "yes");
          }
          return static_cast<int>(exit_code);
        },
        milliseconds(100));
    EXPECT_EQ(code, static_cast<int>(exit_code));
    EXPECT_EQ(read("finished"), "yes");
  }
}

// True while the process exists and has not ended.
bool is_alive(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return false;
  return text[name_end + 2] != 'Z' && text[name_end + 2] != 'X';
}

TEST_F(LocalRanksTest, NoRankOutlivesItsLauncher) {
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    run_local_ranks(2, folder_, [&](const LaunchEnvironment& environment) {
      write(fmt::format("process-{}", environment.rank), std::to_string(::getpid()));
      ::sleep(50);
      return 0;
    });
    ::_exit(0);
  }
  const auto deadline = Clock::now() + seconds(20);
  const auto both = [&](auto condition) {
    while (!(condition(read("process-0")) && condition(read("process-1"))) &&
           Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    return condition(read("process-0")) && condition(read("process-1"));
  };
  ASSERT_TRUE(
      both([](const std::string& process) { return !process.empty() && is_alive(process); }));
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(both([](const std::string& process) { return !is_alive(process); }));
}

TEST_F(LocalRanksTest, AFolderThatCannotBeMadeIsAConfigError) {
  write("file", "in the way");
  EXPECT_THROW(run_local_ranks(2, folder_ / "file", [](const LaunchEnvironment&) { return 0; }),
               ConfigError);
}

}  // namespace
}  // namespace grpo::app
