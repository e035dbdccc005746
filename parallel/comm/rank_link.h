// RankLink: one rank's end of all connections. Adds to the transport what errors need: the rank's
// phase and step, the failures of others, and the search for the rank that hangs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "parallel/comm/failure_board.h"
#include "parallel/comm/gloo_transport.h"
#include "parallel/comm/world.h"

namespace grpo::parallel {

// Shared by the World that owns it and its communicators. transfer() and close() belong to the
// rank's thread.
class RankLink {
 public:
  explicit RankLink(const WorldOptions& options);
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;
  ~RankLink();

  // Connects to all peers. Called once, before transfer(). Throws CommError.
  void connect();

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  // As Transport::transfer, with the world's timeout; "operation of group" appears in messages.
  // Throws CommError, and the same again for every call after it.
  void transfer(std::string_view operation, std::string_view group,
                std::span<const WireMessage> sends, std::span<const WireMessage> receives);

  // For whoever waits for peers outside of transfer(), on any thread: the wait for `peers` in
  // "operation of group" is over without them. Records why; this and every later transfer throw it.
  enum class Trouble { kTimeout, kInterrupted, kBroken };
  void give_up(Trouble trouble, const std::vector<int>& peers, const std::string& during,
               const std::string& detail) noexcept;
  // What ended this rank's communication, if anything did.
  void rethrow_failure() const;
  bool has_trouble() noexcept { return board_.has_trouble(); }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  void set_phase(const std::string& phase, int64_t step);
  void record_failure(const Error& error) noexcept;
  std::optional<FailureRecord> first_failure(std::chrono::milliseconds grace);
  // Closes the connections; what was sent arrives. The link is of no more use.
  void close() noexcept;

 private:
  void wait_for_all_ranks(SteadyClock::time_point deadline);
  void greet_all_ranks();
  void watch_for_trouble();
  // Turns the transport's error into the CommError that tells the cause.
  [[noreturn]] void fail(const TransportError& error, const std::string& during);
  void keep_failure(std::exception_ptr failure);
  void throw_if_peer_failed(std::chrono::milliseconds grace);
  [[noreturn]] void record_and_throw(const std::string& message);
  std::string phase_text() const;  // "phase 'generation', step 3"

  WorldOptions options_;
  FailureBoard board_;
  std::unique_ptr<Transport> transport_;

  mutable std::mutex failure_mutex_;
  std::exception_ptr failure_;  // of an earlier transfer or wait

  mutable std::mutex phase_mutex_;
  std::string phase_ = "setup";
  int64_t step_ = 0;

  std::mutex watch_mutex_;
  std::condition_variable watch_wakeup_;
  bool stop_watching_ = false;
  std::thread watcher_;
};

}  // namespace grpo::parallel
