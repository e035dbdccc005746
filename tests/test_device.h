// The device that tests run models on: the environment's GRPO_TEST_DEVICE, "cpu" (the default) or
// "cuda".
#pragma once

#include "model/core/device.h"

namespace grpo::testing {

// On a rank's thread of several it is the CPU: only solo ranks run on GPUs.
Device test_device();

// Says how many ranks the calling thread is one of (1 until told otherwise).
void set_ranks_of_this_thread(int num_ranks);

}  // namespace grpo::testing
