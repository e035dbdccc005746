// FailureBoard: what ranks tell each other through the key-value store once something went wrong:
// the first failure, and who waits for whom.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "parallel/comm/key_value_store.h"
#include "parallel/comm/world.h"

namespace grpo::parallel {

// A wait that did not end: for which rank, and in the course of what.
struct StuckWait {
  int peer;
  std::string during;  // "all_gather of group dp, phase 'generation', step 3"
};

// "waits for rank 2 ...": follows the waits from `rank` to the rank that waits for nobody, or round
// a cycle.
std::string explain_waits(const std::map<int, StuckWait>& waits, int rank);

// Thread-safe, as the store is. A store that cannot be used is one that holds nothing: the failure
// at hand must not become another one.
class FailureBoard {
 public:
  FailureBoard(std::shared_ptr<KeyValueStore> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  // False when another failure is already recorded.
  bool record(const FailureRecord& failure) noexcept;
  std::optional<FailureRecord> first_failure(std::chrono::milliseconds grace) noexcept;

  // Says that this rank gave up waiting; ranks that still wait see has_trouble() and do the same.
  void report_stuck(const StuckWait& wait) noexcept;
  // True once any rank reported a failure or gave up waiting.
  bool has_trouble() noexcept;
  // Everyone's reports, collected for `patience`; shorter when all ranks, or all but one, have
  // reported.
  std::map<int, StuckWait> collect_stuck(std::chrono::milliseconds patience);

 private:
  std::optional<std::string> get(const std::string& key) noexcept;
  bool set(const std::string& key, const std::string& value) noexcept;

  std::shared_ptr<KeyValueStore> store_;
  int rank_;
  int size_;
};

}  // namespace grpo::parallel
