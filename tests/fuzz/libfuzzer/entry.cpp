// libFuzzer's entry point for one target, which the build names in GRPO_FUZZ_TARGET.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  grpo::fuzz::GRPO_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
