#include "tests/test_device.h"

#include <cstdlib>
#include <string_view>

#include "model/core/device_cuda.h"
#include "model/core/errors.h"

namespace grpo::testing {

namespace {

thread_local int rank_of_this_thread = 0;
thread_local int ranks_of_this_thread = 1;

}  // namespace

void set_rank_of_this_thread(int rank, int num_ranks) {
  rank_of_this_thread = rank;
  ranks_of_this_thread = num_ranks;
}

bool has_device_for_ranks(int num_ranks) {
  const char* const wanted = std::getenv("GRPO_TEST_DEVICE");
  const std::string_view name = wanted == nullptr ? "cpu" : wanted;
  CHECK(name == "cpu" || name == "cuda", "GRPO_TEST_DEVICE is '{}'; allowed: cpu, cuda", name);
  return name == "cuda" && (num_ranks == 1 || num_ranks <= cuda_device_count());
}

Device test_device() {
  return has_device_for_ranks(ranks_of_this_thread) ? Device{DeviceKind::kCuda, rank_of_this_thread}
                                                    : Device::cpu();
}

bool is_on_gpu() {
  const Device device = test_device();
  return device.kind == DeviceKind::kCuda && cuda_device_info(device).name != "fake device";
}

}  // namespace grpo::testing
