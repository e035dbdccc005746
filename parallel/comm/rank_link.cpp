#include "parallel/comm/rank_link.h"

#include <signal.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace grpo::parallel {
namespace {

using std::chrono::milliseconds;

// A rank that timed out looks this long at who else waits. Its own message comes after that, so
// whoever lost a connection waits longer for the first failure to be written.
constexpr milliseconds kStuckPatience{1500};
constexpr milliseconds kFailureGrace{3000};

// Waits shorter than this do not look for trouble elsewhere; longer ones look every kWatchPeriod.
constexpr milliseconds kWatchAfter{200};
constexpr milliseconds kWatchPeriod{100};

double seconds(milliseconds duration) { return static_cast<double>(duration.count()) / 1000.0; }

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? " " : ", ", ranks[i]);
  return text;
}

}  // namespace

RankLink::RankLink(const WorldOptions& options)
    : options_(options), board_(options.store, options.rank, options.size) {
  CHECK(options.size >= 1 && options.rank >= 0 && options.rank < options.size,
        "rank {} in a world of {}", options.rank, options.size);
  CHECK(options.store != nullptr);
}

void RankLink::connect() {
  if (options_.size == 1) return;
  const auto deadline = SteadyClock::now() + options_.timeout;
  wait_for_all_ranks(deadline);
  try {
    transport_ =
        connect_gloo({options_.rank, options_.size, options_.host, deadline}, *options_.store);
  } catch (const TransportError& error) {
    throw_if_peer_failed(kFailureGrace);
    record_and_throw(fmt::format("could not connect to the other ranks from {}: {}", options_.host,
                                 error.what()));
  }
  // The watcher takes no signals: handlers run on the program's own threads.
  sigset_t all, saved;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &saved);
  watcher_ = std::thread([this] { watch_for_trouble(); });
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  greet_all_ranks();
}

RankLink::~RankLink() { close(); }

void RankLink::wait_for_all_ranks(SteadyClock::time_point deadline) {
  const auto key = [](int rank) { return fmt::format("hello/{}", rank); };
  if (!options_.store->set_if_absent(key(options_.rank), options_.host)) {
    throw CommError(fmt::format(
        "rank {}: a rank {} is already in the rendezvous: another process with this rank, "
        "or a folder left by an earlier launch",
        options_.rank, options_.rank));
  }
  std::vector<int> missing(static_cast<size_t>(options_.size));
  std::iota(missing.begin(), missing.end(), 0);
  for (auto pause = milliseconds(1);; pause = std::min(pause * 2, milliseconds(50))) {
    std::erase_if(missing, [&](int rank) { return options_.store->get(key(rank)).has_value(); });
    if (missing.empty()) return;
    throw_if_peer_failed(milliseconds(0));
    if (SteadyClock::now() >= deadline) {
      record_and_throw(fmt::format("waited {:.1f} s for {} to connect", seconds(options_.timeout),
                                   list_ranks(missing)));
    }
    std::this_thread::sleep_for(pause);
  }
}

// A rank whose own connections stand could finish and close them while others still connect, which
// would end those: nobody goes on before everybody is connected.
void RankLink::greet_all_ranks() {
  std::vector<uint8_t> greetings(static_cast<size_t>(options_.size));
  std::vector<WireMessage> sends, receives;
  constexpr uint64_t kGreetingSlot = 0;
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer == options_.rank) continue;
    sends.push_back({peer, &greetings[static_cast<size_t>(options_.rank)], 1, kGreetingSlot});
    receives.push_back({peer, &greetings[static_cast<size_t>(peer)], 1, kGreetingSlot});
  }
  transfer("connect", "world", sends, receives);
}

void RankLink::watch_for_trouble() {
  std::unique_lock lock(watch_mutex_);
  while (!watch_wakeup_.wait_for(lock, kWatchPeriod, [this] { return stop_watching_; })) {
    if (transport_->waiting_for() < kWatchAfter) continue;
    if (board_.has_trouble()) transport_->interrupt();
  }
}

void RankLink::transfer(std::string_view operation, std::string_view group,
                        std::span<const WireMessage> sends, std::span<const WireMessage> receives) {
  rethrow_failure();
  CHECK(transport_ != nullptr, "{} of group {} after the world was closed", operation, group);
  try {
    transport_->transfer(sends, receives, SteadyClock::now() + options_.timeout);
  } catch (const TransportError& error) {
    try {
      fail(error, fmt::format("{} of group {}", operation, group));
    } catch (...) {
      keep_failure(std::current_exception());
    }
    transport_->close();
    rethrow_failure();
  }
}

void RankLink::keep_failure(std::exception_ptr failure) {
  const std::lock_guard lock(failure_mutex_);
  if (!failure_) failure_ = std::move(failure);
}

void RankLink::rethrow_failure() const {
  const std::lock_guard lock(failure_mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void RankLink::give_up(Trouble trouble, const std::vector<int>& peers, const std::string& during,
                       const std::string& detail) noexcept {
  try {
    throw_if_peer_failed(milliseconds(0));
    board_.report_stuck({peers.front(), fmt::format("{}, {}", during, phase_text())});
    const std::string names = list_ranks(peers);
    if (trouble == Trouble::kTimeout) {
      const auto waits = board_.collect_stuck(kStuckPatience);
      throw_if_peer_failed(milliseconds(0));
      record_and_throw(fmt::format("waited {:.1f} s for {} in {}; {}", seconds(options_.timeout),
                                   names, during, explain_waits(waits, options_.rank)));
    }
    throw_if_peer_failed(kFailureGrace);
    if (trouble == Trouble::kInterrupted) {
      record_and_throw(fmt::format(
          "stopped waiting for {} in {}: another rank gave up and did not say why", names, during));
    }
    record_and_throw(fmt::format("{} with {} failed: {}", during, names, detail));
  } catch (...) {
    keep_failure(std::current_exception());
  }
}

void RankLink::fail(const TransportError& error, const std::string& during) {
  using Kind = TransportError::Kind;
  throw_if_peer_failed(milliseconds(0));
  board_.report_stuck({error.peer(), fmt::format("{}, {}", during, phase_text())});
  if (error.kind() == Kind::kTimeout) {
    const auto waits = board_.collect_stuck(kStuckPatience);
    record_and_throw(fmt::format("waited {:.1f} s for rank {} in {}; {}", seconds(options_.timeout),
                                 error.peer(), during, explain_waits(waits, options_.rank)));
  }
  throw_if_peer_failed(kFailureGrace);
  if (error.kind() == Kind::kClosed) {
    record_and_throw(
        fmt::format("connection to rank {} closed in {}; rank {} ended without a report ({})",
                    error.peer(), during, error.peer(), error.what()));
  }
  record_and_throw(
      fmt::format("stopped waiting for rank {} in {}: another rank gave up and did not say why",
                  error.peer(), during));
}

void RankLink::throw_if_peer_failed(milliseconds grace) {
  const auto failure = board_.first_failure(grace);
  if (!failure || failure->rank == options_.rank) return;
  const std::string where = failure->phase.empty() ? ""
                                                   : fmt::format(" in phase '{}', step {}",
                                                                 failure->phase, failure->step);
  throw PeerFailureError(failure->exit_code,
                         fmt::format("rank {}: stopped because rank {} failed{}: {}", options_.rank,
                                     failure->rank, where, failure->message));
}

void RankLink::record_and_throw(const std::string& message) {
  {
    const std::lock_guard lock(phase_mutex_);
    board_.record({options_.rank, ExitCode::kComm, phase_, step_, message});
  }
  throw CommError(fmt::format("rank {}, {}: {}", options_.rank, phase_text(), message));
}

std::string RankLink::phase_text() const {
  const std::lock_guard lock(phase_mutex_);
  return fmt::format("phase '{}', step {}", phase_, step_);
}

void RankLink::set_phase(const std::string& phase, int64_t step) {
  const std::lock_guard lock(phase_mutex_);
  phase_ = phase;
  step_ = step;
  if (options_.on_phase) options_.on_phase(phase, step);
}

void RankLink::record_failure(const Error& error) noexcept {
  if (dynamic_cast<const PeerFailureError*>(&error) != nullptr) return;
  try {
    const std::lock_guard lock(phase_mutex_);
    board_.record({options_.rank, error.exit_code(), phase_, step_, error.what()});
  } catch (...) {
    // Nowhere left to say it; the error itself is on its way to main().
  }
}

std::optional<FailureRecord> RankLink::first_failure(milliseconds grace) {
  return board_.first_failure(grace);
}

void RankLink::close() noexcept {
  {
    const std::lock_guard lock(watch_mutex_);
    stop_watching_ = true;
  }
  watch_wakeup_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  transport_.reset();
}

}  // namespace grpo::parallel
