// Which device a rank's memory and work belong to, from the config's parallel.device.
#pragma once

#include <string>

#include "model/core/device.h"
#include "parallel/comm/world.h"

namespace grpo::parallel {

struct RankDevice {
  Device device;
  std::string description;  // "cuda:0 (NVIDIA H200)", "cpu (parallel.device is auto: no CUDA driver
                            // is installed ...)"
};

// `wanted` is auto, cpu or cuda; auto takes GPUs when every rank can have one of its own and, for
// several ranks, NCCL can be loaded. `local_rank` counts the ranks of this machine: GPU i is local
// rank i's, or the only one that its launcher lets it see. Collective over `world`. Throws
// ConfigError when cuda is wanted and cannot be had: no CUDA in this build, no driver or one that
// is too old, no GPU that this build has code for, fewer GPUs than ranks, one GPU for two ranks.
RankDevice choose_device(const std::string& wanted, int local_rank, World& world);

// Throws ConfigError, on every member, when two ranks give the same device identity.
void refuse_shared_devices(const std::string& identity, Communicator& world);

}  // namespace grpo::parallel
