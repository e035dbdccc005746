#include "app/local_ranks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <optional>
#include <random>
#include <vector>

#include "model/core/errors.h"
#include "parallel/world.h"

namespace grpo::app {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using RankMain = std::function<int(const LaunchEnvironment&)>;

// Between SIGTERM and SIGKILL, for ranks that did not stop by themselves.
constexpr milliseconds kTermToKill{2000};

std::string new_nonce() {
  std::random_device random;
  const uint64_t salt = (uint64_t{random()} << 32) | random();
  return fmt::format("local-{}-{:016x}", ::getpid(), salt);
}

// Holds back signals that the parent takes by sigtimedwait, and restores the mask.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) sigaddset(&held_, signal);
    pthread_sigmask(SIG_BLOCK, &held_, &saved_);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() { restore(); }

  void restore() const { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

  // A signal to pass on to the children, or 0 after `timeout` or when a child changed state.
  int take(milliseconds timeout) const {
    const timespec limit{timeout.count() / 1000, (timeout.count() % 1000) * 1'000'000};
    siginfo_t info;
    const int signal = sigtimedwait(&held_, &info, &limit);
    if (signal <= 0 || signal == SIGCHLD) return 0;
    // Ctrl-C reaches every process of the terminal's group, the children included.
    if (signal == SIGINT && info.si_code == SI_KERNEL) return 0;
    return signal;
  }

 private:
  sigset_t held_;
  sigset_t saved_;
};

// All ranks end like this together; one that still writes a checkpoint is not late.
bool is_agreed_end(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::kGate) ||
         exit_code == static_cast<int>(ExitCode::kSavedAfterSignal);
}

int run_child(const LaunchEnvironment& environment, const RankMain& rank_main) {
  try {
    return rank_main(environment);
  } catch (const Error& error) {
    fmt::print(stderr, "rank {}: {}\n", environment.rank, error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", environment.rank, error.what());
    return static_cast<int>(ExitCode::kOther);
  }
}

class LocalRanks {
 public:
  LocalRanks(const std::filesystem::path& folder, milliseconds grace)
      : store_(parallel::make_file_store(folder)), grace_(grace) {}

  void start(const LaunchEnvironment& environment, const RankMain& rank_main);
  int wait_for_all();

 private:
  struct Child {
    pid_t process;
    bool is_running = true;
  };

  void collect_ended();
  void note_failure(int rank, int status);
  void stop_late_ranks();
  void signal_all(int signal) const;
  bool any_running() const;

  std::shared_ptr<parallel::KeyValueStore> store_;
  milliseconds grace_;
  HeldSignals signals_;
  std::vector<Child> children_;  // by rank
  int exit_code_ = 0;
  std::optional<Clock::time_point> first_failure_time_;
  bool is_terminating_ = false;
};

void LocalRanks::start(const LaunchEnvironment& environment, const RankMain& rank_main) {
  const pid_t parent = ::getpid();
  std::fflush(nullptr);  // what is buffered now would be written by every child
  std::cout.flush();
  const pid_t process = ::fork();
  if (process < 0) {
    const int error = errno;
    signal_all(SIGKILL);
    throw Error(ExitCode::kOther,
                fmt::format("cannot start rank {} of {}: fork: {}", environment.rank,
                            environment.world_size, std::strerror(error)));
  }
  if (process == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent)
      ::_exit(static_cast<int>(ExitCode::kOther));  // it died before the line above
    signals_.restore();
    const int code = run_child(environment, rank_main);
    std::cout.flush();
    std::fflush(nullptr);
    ::_exit(code);
  }
  children_.push_back({process});
}

bool LocalRanks::any_running() const {
  for (const Child& child : children_) {
    if (child.is_running) return true;
  }
  return false;
}

void LocalRanks::signal_all(int signal) const {
  for (const Child& child : children_) {
    if (child.is_running) ::kill(child.process, signal);
  }
}

void LocalRanks::collect_ended() {
  for (size_t rank = 0; rank < children_.size(); ++rank) {
    Child& child = children_[rank];
    int status = 0;
    if (!child.is_running || ::waitpid(child.process, &status, WNOHANG) != child.process) continue;
    child.is_running = false;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == 0) continue;
    if (is_agreed_end(code)) {
      if (exit_code_ == 0) exit_code_ = code;
    } else {
      note_failure(static_cast<int>(rank), status);
    }
  }
}

void LocalRanks::note_failure(int rank, int status) {
  parallel::FailureRecord record{rank, ExitCode::kComm, "", 0, ""};
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    record.message = fmt::format("killed by signal {} ({})", signal, ::strsignal(signal));
    if (!is_terminating_) fmt::print(stderr, "rank {} was {}\n", rank, record.message);
  } else {
    record.exit_code = static_cast<ExitCode>(WEXITSTATUS(status));
    record.message = fmt::format("ended with exit code {} without a report", WEXITSTATUS(status));
  }
  if (first_failure_time_) return;
  first_failure_time_ = Clock::now();
  // Where the rank, or one before it, wrote a report itself, that one stays and tells the run's
  // exit code.
  store_->set_if_absent(parallel::kFailureKey, parallel::encode_failure(record));
  exit_code_ =
      static_cast<int>(parallel::decode_failure(*store_->get(parallel::kFailureKey)).exit_code);
}

void LocalRanks::stop_late_ranks() {
  if (!first_failure_time_) return;
  const auto since_failure = Clock::now() - *first_failure_time_;
  if (since_failure >= grace_ + kTermToKill) {
    signal_all(SIGKILL);
  } else if (since_failure >= grace_ && !is_terminating_) {
    is_terminating_ = true;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      if (!children_[rank].is_running) continue;
      fmt::print(stderr, "rank {} did not stop within {:.1f} s of the first failure: terminated\n",
                 rank, static_cast<double>(grace_.count()) / 1000.0);
    }
    signal_all(SIGTERM);
  }
}

int LocalRanks::wait_for_all() {
  while (any_running()) {
    if (const int signal = signals_.take(milliseconds(100))) signal_all(signal);
    collect_ended();
    stop_late_ranks();
  }
  return exit_code_;
}

// Removes the rendezvous folder however the run ends.
class RendezvousFolder {
 public:
  explicit RendezvousFolder(const std::filesystem::path& path) : path_(path) {}
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;
  ~RendezvousFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    std::filesystem::remove(path_.parent_path(),
                            ignored);  // unless another launch has its folder there
  }

 private:
  std::filesystem::path path_;
};

}  // namespace

int run_local_ranks(int num_ranks, const std::filesystem::path& rendezvous_parent,
                    const RankMain& rank_main, milliseconds grace) {
  CHECK(num_ranks >= 1, "{} local ranks", num_ranks);
  LaunchEnvironment environment;
  environment.world_size = num_ranks;
  environment.nonce = new_nonce();
  const auto path = rendezvous_folder(rendezvous_parent, environment);
  const RendezvousFolder folder(path);
  if (num_ranks == 1) return rank_main(environment);
  LocalRanks ranks(path, grace);
  for (int rank = 0; rank < num_ranks; ++rank) {
    environment.rank = rank;
    environment.local_rank = rank;
    ranks.start(environment, rank_main);
  }
  return ranks.wait_for_all();
}

}  // namespace grpo::app
