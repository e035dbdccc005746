#include "parallel/comm/rank_device.h"

#include <numeric>
#include <span>
#include <vector>

#include "model/core/device_cuda.h"
#include "model/ops/matrix_library.h"
#include "parallel/comm/device_link.h"
#include "parallel/comm/host_collectives.h"

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
    if (const std::string reason = why_no_matrix_library(); !reason.empty()) {
      throw CudaError(reason);
    }
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

std::vector<std::string> all_gather_texts(Communicator& group, const std::string& text) {
  std::vector<std::string> texts;
  for (const auto& bytes : all_gather_bytes(group, std::as_bytes(std::span(text)))) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return texts;
}

// Why not every rank can have a GPU of its own that talks to the others'; empty when all can.
// Collective.
std::string reason_against_gpus(int local_rank, Communicator& world) {
  std::string reason;
  if (cuda_device_count() == 0) {
    reason = reason_without_devices();
  } else if (world.size() > 1) {
    reason = why_no_device_link();
    if (reason.empty() && cuda_device_count() > 1 && local_rank >= cuda_device_count()) {
      reason = fmt::format("{} GPUs for more ranks on this machine", cuda_device_count());
    }
  }
  const std::string identity =
      reason.empty() ? cuda_device_info(own_cuda_device(local_rank)).identity : "";
  const auto reasons = all_gather_texts(world, reason);
  const auto identities = all_gather_texts(world, identity);
  for (size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty()) return reasons[rank];
    for (size_t before = 0; before < rank; ++before) {
      if (identities[before] == identities[rank]) {
        return fmt::format("ranks {} and {} would share a GPU", before, rank);
      }
    }
  }
  return "";
}

}  // namespace

void refuse_shared_devices(const std::string& identity, Communicator& world) {
  const auto all = all_gather_texts(world, identity);
  for (size_t b = 1; b < all.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (all[a] != all[b]) continue;
      throw ConfigError(fmt::format(
          "parallel.device is cuda: ranks {} and {} would share GPU {}; allowed: one rank on each "
          "GPU",
          a, b, all[a]));
    }
  }
}

RankDevice choose_device(const std::string& wanted, int local_rank, World& world) {
  if (wanted == "cpu") return {Device::cpu(), "cpu"};
  const auto group = everyone(world);
  if (wanted == "auto") {
    const std::string reason = reason_against_gpus(local_rank, *group);
    if (!reason.empty()) {
      return {Device::cpu(), fmt::format("cpu (parallel.device is auto: {})", reason)};
    }
  }
  const Device device = own_cuda_device(local_rank);
  const CudaDeviceInfo info = cuda_device_info(device);
  refuse_shared_devices(info.identity, *group);
  return {device, fmt::format("{} ({})", device_name(device), info.name)};
}

}  // namespace grpo::parallel
