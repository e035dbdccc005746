// World: one rank's connection to all others, the groups cut from it, and the report of the first
// failure.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/core/communicator.h"
#include "model/core/errors.h"
#include "parallel/key_value_store.h"

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
