#include "parallel/rank_device.h"

#include <numeric>
#include <span>
#include <vector>

#include "model/core/device_cuda.h"
#include "parallel/host_collectives.h"

namespace grpo::parallel {

namespace {

// The GPU of a local rank, known to run this build's kernels.
Device own_cuda_device(int local_rank) {
  const int count = cuda_device_count();
  // A launcher that binds each rank to a GPU shows it that one alone.
  const Device device{DeviceKind::kCuda, count == 1 ? 0 : local_rank};
  if (count > 1 && local_rank >= count) {
    throw ConfigError(
        fmt::format("parallel.device is cuda: local rank {} has no GPU of its own, this machine "
                    "has {}; allowed: as many ranks "
                    "as GPUs",
                    local_rank, count));
  }
  try {
    check_cuda_device(device);
  } catch (const CudaError& error) {
    throw ConfigError(fmt::format("parallel.device is cuda: {}; allowed here: cpu", error.what()));
  }
  return device;
}

// Why there is no GPU; what check_cuda_device says of the first one.
std::string reason_without_devices() {
  try {
    check_cuda_device({DeviceKind::kCuda, 0});
  } catch (const CudaError& error) {
    return error.what();
  }
  return "no CUDA device";
}

std::shared_ptr<Communicator> everyone(World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group(ranks, "devices");
}

}  // namespace

void refuse_shared_devices(const std::string& identity, Communicator& world) {
  const auto all = all_gather_bytes(world, std::as_bytes(std::span(identity)));
  for (size_t b = 1; b < all.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (all[a] != all[b]) continue;
      throw ConfigError(fmt::format(
          "parallel.device is cuda: ranks {} and {} would share GPU {}; allowed: one rank on each "
          "GPU",
          a, b, std::string(reinterpret_cast<const char*>(all[a].data()), all[a].size())));
    }
  }
}

RankDevice choose_device(const std::string& wanted, int local_rank, World& world) {
  if (wanted == "cpu") return {Device::cpu(), "cpu"};
  if (wanted == "auto") {
    if (cuda_device_count() == 0) {
      return {Device::cpu(),
              fmt::format("cpu (parallel.device is auto: {})", reason_without_devices())};
    }
    if (world.size() > 1) {
      return {Device::cpu(), "cpu (parallel.device is auto: GPUs serve runs of one rank only)"};
    }
  }
  const Device device = own_cuda_device(local_rank);
  const CudaDeviceInfo info = cuda_device_info(device);
  if (world.size() > 1) {
    refuse_shared_devices(info.identity, *everyone(world));
    throw ConfigError(
        fmt::format("parallel.device is cuda and the run has {} ranks: communication between GPUs "
                    "is not built yet; allowed: one "
                    "rank, or parallel.device=cpu",
                    world.size()));
  }
  return {device, fmt::format("{} ({})", device_name(device), info.name)};
}

}  // namespace grpo::parallel
