// Communicator: collectives over one process group, as the model and everything above it see them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/core/device.h"
#include "model/core/tensor.h"

namespace grpo {

// One message of an exchange. A message to oneself is a copy. Empty messages are not sent.
struct PeerMessage {
  int peer;  // rank within the group
  Tensor data;
};

struct CommCounters {
  int64_t num_collectives = 0;
  int64_t sent_bytes = 0;  // to other ranks
};

// A rank's handle on a group; all members call the same collectives in the same order. Used by one
// thread. Sums are added in rank order in fp32 (or the integer type), so every member gets the same
// bits and a repeat gets them again. Operations are ordered on `stream`; on the CPU they have
// finished on return. Zero elements are allowed everywhere. Errors: CommError that names rank,
// phase, step, operation and peer.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual const std::string& name() const = 0;  // "gtp_remat", "dp", "world", ...
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // out [size * n] <- every member's in [n], in rank order; any dtype. `in` may be its own slot of
  // `out`.
  virtual void all_gather(const Tensor& out, const Tensor& in, Stream stream) = 0;
  // into [n] += the members' in[rank * n ...], one member after the other; float32. So n
  // collectives over one member each and one over n members give the same bits. into and in do not
  // overlap.
  virtual void reduce_scatter_add(const Tensor& into, const Tensor& in, Stream stream) = 0;
  // data [n] <- sum over members; float32 or int64 (wraps modulo 2^64).
  virtual void all_reduce_sum(const Tensor& data, Stream stream) = 0;
  // data [n] <- the root's data; any dtype.
  virtual void broadcast(const Tensor& data, int root, Stream stream) = 0;
  // Sends and receives any number of messages; per pair of ranks they match in order and size.
  virtual void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                        Stream stream) = 0;
  virtual void barrier() = 0;

  virtual const CommCounters& counters() const = 0;
};

}  // namespace grpo
