#include "app/launch/local_ranks.h"

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

#include "app/launch/launcher_pid_file.h"
#include "app/launch/phase_board.h"
#include "app/launch/stop_signals.h"
#include "app/text/error_line.h"
#include "model/core/errors.h"
#include "parallel/comm/world.h"

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

// Holds back signals that the parent takes by sigtimedwait, and restores the mask at the end.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int signal : kStopSignals) {
      if (is_stop_signal(signal)) sigaddset(&held_, signal);
    }
    sigaddset(&held_, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &held_, &saved_);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() {
    while (take(milliseconds(0)).has_value()) {  // came too late: the ranks have ended
    }
    restore();
  }

  void restore() const { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

  struct Taken {
    int signal;
    bool is_from_terminal;  // then it went to every process of the terminal's group, the children
                            // included
  };
  // nullopt after `timeout`.
  std::optional<Taken> take(milliseconds timeout) const {
    const timespec limit{timeout.count() / 1000, (timeout.count() % 1000) * 1'000'000};
    siginfo_t info;
    const int signal = sigtimedwait(&held_, &info, &limit);
    if (signal <= 0) return std::nullopt;
    return Taken{signal, info.si_code == SI_KERNEL};
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
    print_rank_error(environment.rank, error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    print_rank_error(environment.rank, error.what());
    return static_cast<int>(ExitCode::kOther);
  }
}

std::string name_of(int signal) {
  return fmt::format("signal {} ({})", signal, ::strsignal(signal));
}

class LocalRanks {
 public:
  LocalRanks(int num_ranks, const std::filesystem::path& folder, const HeldSignals& signals,
             milliseconds grace)
      : store_(parallel::make_file_store(folder)),
        signals_(signals),
        grace_(grace),
        phases_(num_ranks) {
    mark_launcher(folder);
  }

  void start(LaunchEnvironment environment, const RankMain& rank_main);
  int wait_for_all();

 private:
  struct Child {
    pid_t process;
    bool is_running = true;
    int stopped_by = 0;  // the signal that stopped it, until it is continued
    bool is_ended_by_us = false;
  };

  bool any_running() const;
  void signal_all(int signal);
  void pass_on(const HeldSignals::Taken& taken);
  void collect_changes();
  void note_end(int rank, int status);
  void note_failure(int rank, int status);
  void stop_late_ranks();
  void end(int rank, int signal, const std::string& because);
  std::string whereabouts(int rank) const;  // "rank 1, phase 'generation', step 3"
  int publish(const parallel::FailureRecord& record) noexcept;

  std::shared_ptr<parallel::KeyValueStore> store_;
  const HeldSignals& signals_;
  milliseconds grace_;
  PhaseBoard phases_;
  std::vector<Child> children_;
  int stop_signal_ = 0;  // the last one that the run was sent
  std::optional<Clock::time_point> first_failure_time_;
  int exit_code_ = 0;
};

void LocalRanks::start(LaunchEnvironment environment, const RankMain& rank_main) {
  environment.report_phase = [this, rank = environment.rank](const std::string& phase,
                                                             int64_t step) {
    phases_.write(rank, phase, step);
  };
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

void LocalRanks::signal_all(int signal) {
  for (const Child& child : children_) {
    if (child.is_running) ::kill(child.process, signal);
  }
}

void LocalRanks::pass_on(const HeldSignals::Taken& taken) {
  if (taken.signal == SIGCHLD) return;
  stop_signal_ = taken.signal;
  if (!taken.is_from_terminal) signal_all(taken.signal);
}

void LocalRanks::collect_changes() {
  for (size_t rank = 0; rank < children_.size(); ++rank) {
    Child& child = children_[rank];
    int status = 0;
    while (child.is_running &&
           ::waitpid(child.process, &status, WNOHANG | WUNTRACED | WCONTINUED) == child.process) {
      if (WIFSTOPPED(status)) {
        child.stopped_by = WSTOPSIG(status);
      } else if (WIFCONTINUED(status)) {
        child.stopped_by = 0;
      } else {
        child.is_running = false;
        note_end(static_cast<int>(rank), status);
      }
    }
  }
}

void LocalRanks::note_end(int rank, int status) {
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 0) return;
  if (is_agreed_end(code)) {
    if (exit_code_ == 0) exit_code_ = code;
  } else {
    note_failure(rank, status);
  }
}

void LocalRanks::note_failure(int rank, int status) {
  const PhaseBoard::Entry doing = phases_.read(rank);
  parallel::FailureRecord record{rank, ExitCode::kComm, doing.phase, doing.step, ""};
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    const bool was_asked_for = stop_signal_ != 0 && is_stop_signal(signal);
    if (was_asked_for) record.exit_code = ExitCode::kOther;
    record.message = fmt::format("{} by {}", was_asked_for ? "ended" : "killed", name_of(signal));
    const bool is_expected = children_[static_cast<size_t>(rank)].is_ended_by_us ||
                             (was_asked_for && first_failure_time_);
    if (!is_expected) print_error(fmt::format("{}: {}", whereabouts(rank), record.message));
  } else {
    record.exit_code = static_cast<ExitCode>(WEXITSTATUS(status));
    record.message = fmt::format("ended with exit code {} without a report", WEXITSTATUS(status));
  }
  if (first_failure_time_) return;
  first_failure_time_ = Clock::now();
  exit_code_ = publish(record);
}

// Where the rank, or one before it, wrote a report itself, that one stays and tells the run's exit
// code. A store that cannot be used changes nothing: the others then notice closed connections.
int LocalRanks::publish(const parallel::FailureRecord& record) noexcept {
  try {
    store_->set_if_absent(parallel::kFailureKey, parallel::encode_failure(record));
    if (const auto first = store_->get(parallel::kFailureKey)) {
      return static_cast<int>(parallel::decode_failure(*first).exit_code);
    }
  } catch (const std::exception&) {
    // The record tells as much.
  }
  return static_cast<int>(record.exit_code);
}

std::string LocalRanks::whereabouts(int rank) const {
  const PhaseBoard::Entry doing = phases_.read(rank);
  return fmt::format("rank {}, phase '{}', step {}", rank, doing.phase, doing.step);
}

void LocalRanks::end(int rank, int signal, const std::string& because) {
  Child& child = children_[static_cast<size_t>(rank)];
  if (!child.is_ended_by_us) print_error(fmt::format("{}: {}", whereabouts(rank), because));
  child.is_ended_by_us = true;
  ::kill(child.process, signal);
}

void LocalRanks::stop_late_ranks() {
  if (!first_failure_time_) return;
  const auto since_failure = Clock::now() - *first_failure_time_;
  for (size_t i = 0; i < children_.size(); ++i) {
    const Child& child = children_[i];
    const int rank = static_cast<int>(i);
    if (!child.is_running) continue;
    if (child.stopped_by != 0) {
      end(rank, SIGKILL,
          fmt::format("stopped by {} and not continued: killed", name_of(child.stopped_by)));
    } else if (since_failure >= grace_ + kTermToKill) {
      end(rank, SIGKILL, "did not stop: killed");
    } else if (since_failure >= grace_ && !child.is_ended_by_us) {
      end(rank, SIGTERM,
          fmt::format("did not stop within {:.1f} s of the first failure: terminated",
                      static_cast<double>(grace_.count()) / 1000.0));
    }
  }
}

int LocalRanks::wait_for_all() {
  while (any_running()) {
    if (const auto taken = signals_.take(milliseconds(100))) pass_on(*taken);
    collect_changes();
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
  remove_abandoned_folders(path.parent_path());
  if (num_ranks == 1) {
    const RendezvousFolder folder(path);
    return rank_main(environment);
  }
  const HeldSignals signals;  // until the folder is gone
  const RendezvousFolder folder(path);
  LocalRanks ranks(num_ranks, path, signals, grace);
  for (int rank = 0; rank < num_ranks; ++rank) {
    environment.rank = rank;
    environment.local_rank = rank;
    ranks.start(environment, rank_main);
  }
  return ranks.wait_for_all();
}

}  // namespace grpo::app
