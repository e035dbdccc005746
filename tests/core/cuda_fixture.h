// For tests of a CUDA device; skipped, with the reason, where there is none that this build can
// use.
#pragma once

#include <gtest/gtest.h>

#include "model/core/buffer.h"
#include "model/core/device_cuda.h"
#include "model/core/errors.h"

namespace grpo::testing {

inline constexpr Device kCuda{DeviceKind::kCuda, 0};

class CudaFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      check_cuda_device(kCuda);
    } catch (const CudaError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  Allocator allocator_{kCuda};
};

}  // namespace grpo::testing
