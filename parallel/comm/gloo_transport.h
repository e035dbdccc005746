// Transport: point-to-point messages between all ranks of a launch, over TCP by gloo.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "parallel/comm/key_value_store.h"

namespace grpo::parallel {

using SteadyClock = std::chrono::steady_clock;

// A send and a receive match when they agree on the two ranks and the slot; size_bytes must then be
// equal and is never zero.
struct WireMessage {
  int peer;  // world rank, never the own one
  void* data;
  size_t size_bytes;
  uint64_t slot;
};

// Why a transfer did not complete, and with which peer. After one of these the transport is of no
// more use.
class TransportError : public std::runtime_error {
 public:
  enum class Kind {
    kTimeout,     // the peer did not answer by the deadline
    kClosed,      // the connection to the peer is closed
    kInterrupted  // interrupt() was called while this rank waited for the peer
  };
  TransportError(Kind kind, int peer, const std::string& detail)
      : std::runtime_error(detail), kind_(kind), peer_(peer) {}
  Kind kind() const { return kind_; }
  int peer() const { return peer_; }

 private:
  Kind kind_;
  int peer_;
};

// Owned by one rank. transfer() and close() are called by one thread, the others by any. The
// destructor closes the connections in order: what was sent arrives.
class Transport {
 public:
  virtual ~Transport() = default;

  // Posts all sends, then all receives, and returns when all have completed.
  // Throws TransportError for the first message that has not completed by the deadline, in the
  // order given.
  virtual void transfer(std::span<const WireMessage> sends, std::span<const WireMessage> receives,
                        SteadyClock::time_point deadline) = 0;
  // Ends the wait in progress and every later one with kInterrupted.
  virtual void interrupt() noexcept = 0;
  // How long transfer() has been waiting; zero outside of it.
  virtual std::chrono::milliseconds waiting_for() const = 0;
  // Drops all connections at once; peers that wait for this rank learn it.
  virtual void close() noexcept = 0;
};

struct GlooOptions {
  int rank;
  int size;
  std::string host;                  // address or name this rank listens on
  SteadyClock::time_point deadline;  // of the connection
};

// Connects every pair of ranks; addresses go through the store. Throws TransportError, or Error
// from the store.
std::unique_ptr<Transport> connect_gloo(const GlooOptions& options, KeyValueStore& store);

}  // namespace grpo::parallel
