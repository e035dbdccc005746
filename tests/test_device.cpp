#include "tests/test_device.h"

#include <cstdlib>
#include <string_view>

#include "model/core/errors.h"

namespace grpo::testing {

namespace {
thread_local int ranks_of_this_thread = 1;
}

void set_ranks_of_this_thread(int num_ranks) { ranks_of_this_thread = num_ranks; }

Device test_device() {
  const char* const wanted = std::getenv("GRPO_TEST_DEVICE");
  const std::string_view name = wanted == nullptr ? "cpu" : wanted;
  CHECK(name == "cpu" || name == "cuda", "GRPO_TEST_DEVICE is '{}'; allowed: cpu, cuda", name);
  return name == "cpu" || ranks_of_this_thread > 1 ? Device::cpu() : Device{DeviceKind::kCuda, 0};
}

}  // namespace grpo::testing
