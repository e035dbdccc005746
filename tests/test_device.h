// The device that tests run models on: the environment's GRPO_TEST_DEVICE, "cpu" (the default) or
// "cuda".
#pragma once

#include <functional>
#include <map>
#include <utility>

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

// What one rank computes, for comparison with layouts of several: where their ranks are, on GPUs
// or, for lack of those, on the CPU.
template <typename T>
class OneRank {
 public:
  // `compute` runs one rank on the kind of device that `num_device_ranks` ranks have.
  explicit OneRank(std::function<T(int num_device_ranks)> compute) : compute_(std::move(compute)) {}

  const T& beside(int num_ranks) {
    const bool has_device = has_device_for_ranks(num_ranks);
    const auto known = values_.find(has_device);
    if (known != values_.end()) return known->second;
    return values_.emplace(has_device, compute_(num_ranks)).first->second;
  }

 private:
  std::function<T(int)> compute_;
  std::map<bool, T> values_;
};

}  // namespace grpo::testing
