#include "app/launch/rank_session.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "app/launch/stop_signals.h"
#include "tests/app/scratch_folder.h"

namespace grpo::app {
namespace {

using testing::ScratchFolder;

constexpr std::chrono::milliseconds kTimeout = std::chrono::seconds(20);

struct Outcome {
  int exit_code;
  std::string errors;  // what all ranks wrote to stderr
};

Outcome run(int num_ranks, const std::function<ExitCode(RankContext&)>& body) {
  const ScratchFolder folder;
  ::testing::internal::CaptureStderr();
  const int code = run_ranks({std::nullopt, num_ranks, kTimeout, folder.path()}, body);
  const std::string errors = ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/.rendezvous"));
  return {code, errors};
}

void wait_at_barrier(RankContext& context) { context.world.make_group({0, 1}, "both")->barrier(); }

TEST(RankSession, ReturnsWhatTheRanksReturn) {
  EXPECT_EQ(run(1, [](RankContext&) { return ExitCode::kDone; }).exit_code, 0);
  const Outcome done = run(2, [](RankContext& context) {
    wait_at_barrier(context);
    return ExitCode::kDone;
  });
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_EQ(done.errors, "");
  const Outcome gate = run(2, [](RankContext&) { return ExitCode::kGate; });
  EXPECT_EQ(gate.exit_code, 4);
  EXPECT_EQ(gate.errors, "");
}

TEST(RankSession, TheFailingRankSaysWhyAndTheOthersSayNothing) {
  const Outcome outcome = run(2, [](RankContext& context) -> ExitCode {
    if (context.world.rank() == 1) throw DataError("d.jsonl:3: not JSON");
    wait_at_barrier(context);
    return ExitCode::kDone;
  });
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.errors, "grpo_train: error: rank 1: d.jsonl:3: not JSON\n");
}

TEST(RankSession, OneCauseOnAllRanksIsSaidOnce) {
  const Outcome outcome =
      run(2, [](RankContext&) -> ExitCode { throw ConfigError("no such file"); });
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(outcome.errors == "grpo_train: error: rank 0: no such file\n" ||
              outcome.errors == "grpo_train: error: rank 1: no such file\n")
      << outcome.errors;
}

TEST(RankSession, OtherExceptionsEndTheRunToo) {
  const Outcome outcome = run(2, [](RankContext& context) -> ExitCode {
    if (context.world.rank() == 0) throw std::runtime_error("odd");
    wait_at_barrier(context);
    return ExitCode::kDone;
  });
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.errors, "grpo_train: error: rank 0: odd\n");
  EXPECT_EQ(run(1, [](RankContext&) -> ExitCode { throw std::bad_alloc(); }).errors,
            "grpo_train: error: rank 0: out of host memory\n");
}

TEST(RankSession, ADeadRankEndsTheRun) {
  const Outcome outcome = run(2, [](RankContext& context) -> ExitCode {
    if (context.world.rank() == 1) raise(SIGKILL);
    wait_at_barrier(context);
    return ExitCode::kDone;
  });
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_EQ(outcome.errors,
            "grpo_train: error: rank 1, phase 'setup', step 0: killed by signal 9 (Killed)\n");
}

// Runs fn in a child process, as signal handlers and the wish to stop last as long as a process.
int in_child(const std::function<int()>& fn) {
  const pid_t process = fork();
  if (process == 0) _exit(fn());
  int status = 0;
  waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

ExitCode wait_for_stop(RankContext& context) {
  for (int i = 0; i < 1000 && !context.stop_requested; ++i) usleep(10'000);
  return context.stop_requested ? ExitCode::kSavedAfterSignal : ExitCode::kDone;
}

TEST(RankSession, SignalsAskForAStop) {
  for (const int signal_number : kStopSignals) {
    const int code = in_child([&] {
      catch_stop_signals();
      return run(2,
                 [&](RankContext& context) -> ExitCode {
                   if (context.world.rank() == 0)
                     kill(getppid(), signal_number);  // as Slurm does: to the first process
                   return wait_for_stop(context);
                 })
          .exit_code;
    });
    EXPECT_EQ(code, 75) << signal_number;
  }
}

TEST(RankSession, ARunUnderNohupHasNoHangup) {
  const int code = in_child([] {
    signal(SIGHUP, SIG_IGN);
    catch_stop_signals();
    return run(2,
               [&](RankContext& context) -> ExitCode {
                 if (context.world.rank() == 0) {
                   kill(getppid(), SIGHUP);
                   raise(SIGHUP);
                   usleep(300'000);
                 }
                 wait_at_barrier(context);
                 return context.stop_requested ? ExitCode::kSavedAfterSignal : ExitCode::kDone;
               })
        .exit_code;
  });
  EXPECT_EQ(code, 0);
}

// From before the ranks are forked until after they have connected.
TEST(RankSession, SignalsAtBirthAskForAStopToo) {
  const int code = in_child([] {
    catch_stop_signals();
    const pid_t target = getpid();
    const pid_t sender = fork();
    if (sender == 0) {
      for (int i = 0; i < 300; ++i) {
        kill(target, SIGTERM);
        usleep(200);
      }
      _exit(0);
    }
    const Outcome outcome = run(3, wait_for_stop);
    waitpid(sender, nullptr, 0);
    return outcome.errors.empty() ? outcome.exit_code : 99;
  });
  EXPECT_EQ(code, 75);
}

TEST(RankSession, AStoreThatIsLostKeepsTheRanksOwnError) {
  const ScratchFolder folder;
  ::testing::internal::CaptureStderr();
  const int code =
      run_ranks({std::nullopt, 2, kTimeout, folder.path()}, [&](RankContext& context) -> ExitCode {
        if (context.world.rank() == 0) {
          const auto meeting = rendezvous_folder(folder.path(), context.environment);
          std::filesystem::remove_all(meeting);
          std::ofstream(meeting) << "a file in the way";
          throw DataError("d.jsonl:3: not JSON");
        }
        wait_at_barrier(context);
        return ExitCode::kDone;
      });
  const std::string errors = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(code == 3 || code == 5) << code;  // whichever rank the launcher sees first
  EXPECT_NE(errors.find("grpo_train: error: rank 0: d.jsonl:3: not JSON\n"), std::string::npos)
      << errors;
  EXPECT_EQ(errors.find("rendezvous folder"), std::string::npos) << errors;
}

TEST(RankSession, AMeetingFolderThatCannotBeMadeIsAConfigError) {
  const ScratchFolder folder;
  folder.write("file", "");
  const RankPlan plan{std::nullopt, 2, kTimeout, folder.path() + "/file/x"};
  EXPECT_THROW(run_ranks(plan, [](RankContext&) { return ExitCode::kDone; }), ConfigError);
}

class RankPlanTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name :
         {"TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
      unsetenv(name);
    }
  }
};

TEST_F(RankPlanTest, TheMeshSaysHowManyLocalRanksThereAre) {
  parallel::ParallelConfig config;
  config.gtp_remat = 2;
  EXPECT_EQ(plan_ranks(std::nullopt, config, "x").world_size, 2);
  config.data = 3;
  config.timeout_s = 1.5;
  const RankPlan plan = plan_ranks(std::nullopt, config, "x");
  EXPECT_EQ(plan.world_size, 6);
  EXPECT_FALSE(plan.environment.has_value());
  EXPECT_EQ(plan.timeout.count(), 1500);
  EXPECT_EQ(plan_ranks(4, config, "x").world_size, 4);
  config.data = 65536;
  EXPECT_THROW(plan_ranks(std::nullopt, config, "x"), ConfigError);
}

TEST_F(RankPlanTest, ALauncherAndNprocContradictEachOther) {
  setenv("TORCHELASTIC_RUN_ID", "a", 1);
  setenv("RANK", "1", 1);
  setenv("WORLD_SIZE", "3", 1);
  setenv("LOCAL_RANK", "1", 1);
  setenv("LOCAL_WORLD_SIZE", "3", 1);
  const parallel::ParallelConfig config;
  EXPECT_EQ(plan_ranks(std::nullopt, config, "x").world_size, 3);
  try {
    plan_ranks(2, config, "x");
    FAIL() << "--nproc inside torchrun";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("--nproc 2 is given, but torchrun started this process as rank 1 of 3"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace grpo::app
