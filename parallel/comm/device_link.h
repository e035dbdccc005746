// DeviceLink: one rank's end of the connections between the GPUs of a world, and the groups cut
// from it. It moves bytes and adds nothing: sums are device_communicator.h's.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/core/communicator.h"
#include "parallel/comm/rank_link.h"

namespace grpo::parallel {

// The members of one group as seen from one of them. Tensors lie on the rank's device; every call
// is queued on `stream` and returns before it is done. Empty tensors are not moved. Throws
// CommError (PeerFailureError when another rank failed first); what was queued before is then
// undefined.
class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;

  virtual void all_gather(const Tensor& out, const Tensor& in, Stream stream) = 0;
  virtual void broadcast(const Tensor& data, int root, Stream stream) = 0;
  // No messages to oneself; a member without messages may stay away. `operation` is what error
  // messages call it.
  virtual void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                        const char* operation, Stream stream) = 0;
};

// Owned by a rank's world while a device is attached, and by its groups.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;

  // Collective over the world: all ranks call it in the same order, each with the group that it is
  // in; groups of one call do not overlap. Null for a group of one rank.
  virtual std::shared_ptr<DeviceTransport> make_group(const std::vector<int>& ranks,
                                                      const std::string& name) = 0;
  // Ends everything queued, on this rank; other ranks learn of it by the world's failure record.
  // The link is of no more use.
  virtual void abort() noexcept = 0;
  virtual std::string description() const = 0;  // "NCCL 2.28.9"
};

// Collective over the world, after link->connect(). Throws ConfigError when the library is missing
// or too old; CommError naming what a rank waited for.
std::shared_ptr<DeviceLink> connect_device_link(Device device, std::shared_ptr<RankLink> link,
                                                Communicator& everyone);

// Why connect_device_link() cannot work in this build and on this machine; empty when it can.
std::string why_no_device_link();

}  // namespace grpo::parallel
