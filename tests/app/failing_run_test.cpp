// Whole training runs of which one rank dies, in each phase, on the CPU or, with
// GRPO_TEST_DEVICE=cuda, on GPUs; and the program itself under a launcher's environment.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "app/config/yaml_config_reader.h"
#include "app/launch/rank_session.h"
#include "model/core/errors.h"
#include "rl/config/resolve_config.h"
#include "rl/run/trainer.h"
#include "tests/app/scratch_folder.h"
#include "tests/app/source_folder_test.h"
#include "tests/test_device.h"

namespace grpo::app {
namespace {

using testing::ScratchFolder;
using Clock = std::chrono::steady_clock;

// The demo, made small; paths in its config are relative to the source tree.
std::vector<std::string> small_run(const std::string& log_dir) {
  return {"grpo.num_prompts_per_step=4",   "grpo.num_generations_per_prompt=2",
          "grpo.max_num_steps=2",          "policy.train_global_batch_size=8",
          "warm_start.num_steps=1",        "warm_start.global_batch_size=8",
          "checkpointing.enabled=true",    "checkpointing.save_period=1",
          "logger.num_samples_to_print=0", "logger.log_dir=" + log_dir};
}

class FailingRun : public SourceFolderTest {
 protected:
  FailingRun() : SourceFolderTest(GRPO_SOURCE_DIR) {}

  const ScratchFolder folder_;
};

struct SilentRun final : public rl::RunObserver {
  void on_message(const std::string&) override {}
  void on_warning(const std::string&) override {}
  void on_progress(const std::string&, int64_t, int64_t) override {}
  void on_step(int64_t, const rl::MetricSet&) override {}
  void on_samples(int64_t, const rl::SampleBatch&) override {}
};

// A world whose rank is sent a signal as it enters a phase.
class FatalPhase final : public parallel::World {
 public:
  FatalPhase(parallel::World& world, std::string phase, int64_t step, int signal)
      : world_(world), phase_(std::move(phase)), step_(step), signal_(signal) {}

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::shared_ptr<Communicator> make_group(const std::vector<int>& ranks,
                                           const std::string& name) override {
    return world_.make_group(ranks, name);
  }
  std::unique_ptr<parallel::DeviceAttachment> attach_device(Allocator& allocator) override {
    return world_.attach_device(allocator);
  }
  void rethrow_failure() const override { world_.rethrow_failure(); }
  void set_phase(const std::string& phase, int64_t step) override {
    world_.set_phase(phase, step);
    if (phase == phase_ && step == step_) ::raise(signal_);
  }
  void record_failure(const Error& error) noexcept override { world_.record_failure(error); }
  std::optional<parallel::FailureRecord> first_failure(std::chrono::milliseconds grace) override {
    return world_.first_failure(grace);
  }

 private:
  parallel::World& world_;
  std::string phase_;
  int64_t step_;
  int signal_;
};

struct Outcome {
  int exit_code;
  std::string errors;
};

// GPUs take seconds to set up. Only ranks look whether there are any: a process that has used one
// cannot start others that do.
bool wants_gpus() {
  const char* const wanted = std::getenv("GRPO_TEST_DEVICE");
  return wanted != nullptr && std::string_view(wanted) == "cuda";
}

std::chrono::seconds timeout() { return std::chrono::seconds(wants_gpus() ? 10 : 3); }

// Beyond the timeout.
std::chrono::seconds allowed_time() { return std::chrono::seconds(wants_gpus() ? 15 : 5); }

// Trains on two ranks, of which rank 1 is sent `signal` as it enters the phase of that step.
Outcome train(const std::string& log_dir, const std::string& phase, int64_t step, int signal,
              std::optional<LaunchEnvironment> environment = std::nullopt) {
  rl::RunConfig config = load_run_config("configs/demo_gtp2.yaml", small_run(log_dir));
  rl::resolve(config, 2);
  const RankPlan plan{std::move(environment), 2, timeout(), log_dir};
  ::testing::internal::CaptureStderr();
  const int code = run_ranks(plan, [&](RankContext& context) {
    FatalPhase fatal(context.world, phase, step, signal);
    parallel::World& world = context.world.rank() == 1 ? fatal : context.world;
    SilentRun silent;
    testing::set_rank_of_this_thread(context.world.rank(), context.world.size());
    return rl::Trainer(config, world, testing::test_device(), silent, context.stop_requested,
                       std::nullopt)
        .run()
        .exit_code;
  });
  return {code, ::testing::internal::GetCapturedStderr()};
}

TEST_F(FailingRun, ARankKilledInAnyPhaseEndsTheRunWithOneLine) {
  const std::pair<const char*, int64_t> phases[] = {{"setup", 0},
                                                    {"warm_start", 0},
                                                    {"refit", 1},
                                                    {"generation", 2},
                                                    {"policy_and_reference_logprobs", 1},
                                                    {"policy_training", 2},
                                                    {"checkpointing", 1}};
  for (const auto& [phase, step] : phases) {
    const auto start = Clock::now();
    const Outcome outcome = train(folder_.path(), phase, step, SIGKILL);
    EXPECT_EQ(outcome.exit_code, 5) << phase;
    EXPECT_EQ(
        outcome.errors,
        fmt::format("grpo_train: error: rank 1, phase '{}', step {}: killed by signal 9 (Killed)\n",
                    phase, step));
    EXPECT_LT(Clock::now() - start, wants_gpus() ? allowed_time() : timeout()) << phase;
    EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/.rendezvous"));
  }
}

TEST_F(FailingRun, ARankStoppedInAPhaseEndsTheRunAfterTheTimeout) {
  const auto start = Clock::now();
  const Outcome outcome = train(folder_.path(), "policy_training", 1, SIGSTOP);
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_LT(Clock::now() - start, timeout() + allowed_time());
  for (const std::string& part :
       {fmt::format("grpo_train: error: rank 0, phase 'policy_training', step 1: waited {}.0 s for "
                    "rank 1 in ",
                    timeout().count()),
        std::string("grpo_train: error: rank 1, phase 'policy_training', step 1: stopped by "
                    "signal 19 ")}) {
    EXPECT_NE(outcome.errors.find(part), std::string::npos) << outcome.errors;
  }
}

// Under a launcher nobody but the other ranks can say it.
TEST_F(FailingRun, ARankKilledUnderALauncherIsNamedByTheOthers) {
  const pid_t rank_1 = ::fork();
  const auto as_rank = [&](int rank) {
    LaunchEnvironment environment;
    environment.rank = rank;
    environment.local_rank = rank;
    environment.world_size = 2;
    environment.launcher = "srun";
    environment.nonce = "srun-1-1-0";
    return train(folder_.path(), "generation", 1, SIGKILL, environment);
  };
  if (rank_1 == 0) {
    as_rank(1);
    ::_exit(0);  // not reached
  }
  const Outcome outcome = as_rank(0);
  int status = 0;
  ::waitpid(rank_1, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_EQ(
      outcome.errors.find(
          "grpo_train: error: rank 0, phase 'generation', step 1: connection to rank 1 closed in "),
      0u)
      << outcome.errors;
  EXPECT_EQ(std::count(outcome.errors.begin(), outcome.errors.end(), '\n'), 1) << outcome.errors;
}

using Variables = std::map<std::string, std::string>;

// Starts the program once for each of `environments` and waits for all; their exit codes.
std::vector<int> launch(const std::vector<Variables>& environments,
                        std::vector<std::string> arguments, const std::string& errors_path,
                        const std::string& last_ranks_word = "") {
  arguments.insert(arguments.begin(), {GRPO_TRAIN_PROGRAM, "--config", "configs/demo_gtp2.yaml"});
  std::vector<pid_t> processes;
  for (const Variables& environment : environments) {
    processes.push_back(::fork());
    if (processes.back() != 0) continue;
    const int errors = ::open(errors_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    const int output = ::open((errors_path + ".out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (::dup2(errors, STDERR_FILENO) < 0 || ::dup2(output, STDOUT_FILENO) < 0) ::_exit(98);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    if (!last_ranks_word.empty() && processes.size() == environments.size()) {
      arguments.push_back(last_ranks_word);
    }
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execv(GRPO_TRAIN_PROGRAM, argv.data());
    ::_exit(99);
  }
  std::vector<int> codes;
  for (const pid_t process : processes) {
    int status = 0;
    ::waitpid(process, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return codes;
}

std::vector<Variables> torchrun(int num_ranks) {
  std::vector<Variables> environments;
  for (int rank = 0; rank < num_ranks; ++rank) {
    environments.push_back({{"RANK", std::to_string(rank)},
                            {"LOCAL_RANK", std::to_string(rank)},
                            {"GROUP_RANK", "0"},
                            {"WORLD_SIZE", std::to_string(num_ranks)},
                            {"LOCAL_WORLD_SIZE", std::to_string(num_ranks)},
                            {"MASTER_ADDR", "localhost"},
                            {"MASTER_PORT", "29507"},
                            {"TORCHELASTIC_RUN_ID", "none"},
                            {"TORCHELASTIC_RESTART_COUNT", "0"}});
  }
  return environments;
}

std::vector<Variables> by_hand(int num_ranks) {
  auto environments = torchrun(num_ranks);
  for (Variables& environment : environments) {
    environment.erase("TORCHELASTIC_RUN_ID");
    environment.erase("TORCHELASTIC_RESTART_COUNT");
  }
  return environments;
}

TEST_F(FailingRun, LaunchedRanksMeetAndLeaveNothingBehind) {
  for (const auto& environments : {torchrun(2), by_hand(2)}) {
    const ScratchFolder folder;
    const std::string errors = folder.path() + "/errors";
    EXPECT_EQ(launch(environments, small_run(folder.path()), errors), (std::vector<int>{0, 0}));
    EXPECT_EQ(folder.read("errors"), "");
    EXPECT_TRUE(std::filesystem::exists(folder.path() + "/metrics.json"));
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/.rendezvous"));
    // The same again fails on rank 0, which says so once for all.
    EXPECT_EQ(launch(environments, small_run(folder.path()), errors), (std::vector<int>{2, 2}));
    const std::string said = folder.read("errors");
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/.rendezvous"));
  }
}

TEST_F(FailingRun, ABadConfigIsSaidOnceUnderALauncher) {
  const auto codes =
      launch(torchrun(3), {"grpo.max_num_stepz=1", "logger.log_dir=" + folder_.path() + "/run"},
             folder_.path() + "/errors");
  EXPECT_EQ(codes, (std::vector<int>{2, 2, 2}));
  EXPECT_EQ(folder_.read("errors"),
            "grpo_train: error: override grpo.max_num_stepz=1: grpo.max_num_stepz is not a key; "
            "nearest: grpo.max_num_steps\n");
}

TEST_F(FailingRun, ARankWithAnotherConfigIsNamedWithTheKey) {
  EXPECT_EQ(launch(torchrun(2), small_run(folder_.path() + "/run"), folder_.path() + "/errors",
                   "grpo.seed=5"),
            (std::vector<int>{2, 2}));
  const std::string errors = folder_.read("errors");
  EXPECT_NE(errors.find("grpo.seed is '42' on rank 0 and '5' on rank 1; allowed: "),
            std::string::npos)
      << errors;
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
}

TEST_F(FailingRun, HalfAnEnvironmentIsRefusedByTheProgram) {
  EXPECT_EQ(launch({{{"WORLD_SIZE", "2"}}}, small_run(folder_.path()), folder_.path() + "/errors"),
            std::vector<int>{2});
  EXPECT_EQ(folder_.read("errors"),
            "grpo_train: error: environment variable RANK is not set although WORLD_SIZE is\n");
}

}  // namespace
}  // namespace grpo::app
