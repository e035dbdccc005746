// World: one rank's connection to all others, the groups cut from it, and the report of the first
// failure.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/core/buffer.h"
#include "model/core/communicator.h"
#include "model/core/errors.h"
#include "parallel/comm/key_value_store.h"

namespace grpo::parallel {

struct WorldOptions {
  int rank;
  int size;
  std::shared_ptr<KeyValueStore> store;        // shared by all ranks of this launch
  std::string host = "127.0.0.1";              // address or name this rank listens on
  std::chrono::milliseconds timeout{600'000};  // of every wait, for each peer
  // Told of each set_phase, for whoever watches this rank from outside; may be empty.
  std::function<void(const std::string& phase, int64_t step)> on_phase = {};
};

// What the first failing rank said before it closed its connections.
struct FailureRecord {
  int rank;
  ExitCode exit_code;
  std::string phase;
  int64_t step;
  std::string message;
};

// While it lives, groups made from the world also serve tensors of one device. Goes before the
// allocator it was made for, after the groups made meanwhile.
class DeviceAttachment {
 public:
  virtual ~DeviceAttachment() = default;

  // What moves the device's tensors: "NCCL 2.28.9"; empty when nothing does (one rank, or the CPU).
  virtual std::string description() const = 0;
  // Ends everything queued, so that no memory is freed under it and no wait for it hangs.
  virtual void abort() noexcept = 0;
};

// Aborts the attachment when the scope is left by an exception: declared inside the scope of what
// would wait for the device when it goes.
class DeviceFailureGuard {
 public:
  explicit DeviceFailureGuard(DeviceAttachment& attachment)
      : attachment_(attachment), num_exceptions_(std::uncaught_exceptions()) {}
  DeviceFailureGuard(const DeviceFailureGuard&) = delete;
  DeviceFailureGuard& operator=(const DeviceFailureGuard&) = delete;
  ~DeviceFailureGuard() {
    if (std::uncaught_exceptions() > num_exceptions_) attachment_.abort();
  }

 private:
  DeviceAttachment& attachment_;
  int num_exceptions_;
};

// Owned by the rank's main function; used by that rank's thread (set_phase and record_failure by
// any). Collectives of all groups run over the pairwise connections of one transport: one failure
// domain, no rendezvous a group. A world of one rank opens no connection. A collective that cannot
// complete throws PeerFailureError when another rank failed first (it carries that rank's message
// and exit code), else CommError with the peer, what was waited for, and which rank hangs; every
// later collective of the world throws the same.
class World {
 public:
  // Connects to all peers. Throws CommError naming the ranks that did not come within the timeout.
  static std::unique_ptr<World> connect(const WorldOptions& options);
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // A communicator over `ranks` (ascending world ranks, this one among them). Every member makes
  // the same call; `name` appears in messages. Members of other groups may make theirs in any
  // order.
  virtual std::shared_ptr<Communicator> make_group(const std::vector<int>& ranks,
                                                   const std::string& name) = 0;

  // Collective; at most one at a time. Groups made while it lives are made by all ranks in the same
  // order. Nothing to do for a world of one rank or an allocator of the CPU. Throws ConfigError
  // when GPUs cannot talk to each other here, CommError.
  virtual std::unique_ptr<DeviceAttachment> attach_device(Allocator& allocator) = 0;
  // Throws what ended this rank's communication, if anything did: a wait that was given up leaves
  // garbage behind, so that what happened after it is no cause.
  virtual void rethrow_failure() const = 0;

  // What errors say this rank was doing: "generation", step 3.
  virtual void set_phase(const std::string& phase, int64_t step) = 0;

  // Called with the exception that ends this rank, before its connections close. The first record
  // of a run stays. A CommError that merely follows from another rank's failure does not become a
  // record.
  virtual void record_failure(const Error& error) noexcept = 0;
  // The first failure, when one is known; waits up to `grace` for it.
  virtual std::optional<FailureRecord> first_failure(std::chrono::milliseconds grace) = 0;
};

// A group of one: no transport, sums are the values themselves. Counts its collectives.
std::shared_ptr<Communicator> make_solo_communicator(const std::string& name);

// Serialisation of FailureRecord under the store key kFailureKey; a launcher that sees a child
// killed by a signal writes it on the child's behalf.
inline constexpr const char* kFailureKey = "first_failure";
std::string encode_failure(const FailureRecord& record);
FailureRecord decode_failure(const std::string& text);

}  // namespace grpo::parallel
