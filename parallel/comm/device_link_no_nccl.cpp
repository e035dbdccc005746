// Stands in for nccl_link_cuda.cpp in builds without NCCL.
#include "model/core/errors.h"
#include "parallel/comm/device_link.h"

namespace grpo::parallel {

std::shared_ptr<DeviceLink> connect_device_link(Device, std::shared_ptr<RankLink>, Communicator&) {
  throw ConfigError(
      fmt::format("parallel.device is cuda: {}; allowed: one rank, or "
                  "parallel.device=cpu",
                  why_no_device_link()));
}

std::string why_no_device_link() { return "this build has no NCCL (nccl.h was not found)"; }

}  // namespace grpo::parallel
