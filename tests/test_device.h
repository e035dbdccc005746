// The device that tests run models on: the environment's GRPO_TEST_DEVICE, "cpu" (the default) or
// "cuda".
#pragma once

#include "model/core/device.h"

namespace grpo::testing {

// For cuda each rank's thread has a device of its own; ranks that are more than the devices run on
// the CPU.
Device test_device();
// test_device() is a GPU, not a stand-in for one.
bool is_on_gpu();

// Whether test_device() is a GPU on each of `num_ranks` ranks.
bool has_device_for_ranks(int num_ranks);

// Says which of how many ranks the calling thread is (0 of 1 until told otherwise).
void set_rank_of_this_thread(int rank, int num_ranks);

}  // namespace grpo::testing
