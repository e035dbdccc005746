// A communicator whose collectives come late, or behind late work: what misses a wait between
// streams then reads or overwrites the wrong bytes.
#pragma once

#include <memory>
#include <vector>

#include "model/core/buffer.h"
#include "model/core/communicator.h"
#include "parallel/process_groups.h"

namespace grpo::testing {

enum class Delay {
  kNone,
  kCommunication,  // the stream of each collective is busy for a while before it
  kWork            // the default stream is, when a collective is queued
};

// Keeps a GPU's stream busy for about a millisecond. On the CPU, and on the fake device, nothing is
// late.
class BusyWork {
 public:
  explicit BusyWork(Allocator& allocator);  // which outlives it
  void queue(Stream stream) const;

 private:
  Buffer memory_;  // empty where nothing is late
};

// The allocator outlives the result.
std::shared_ptr<Communicator> delay(std::shared_ptr<Communicator> communicator, Delay kind,
                                    Allocator& allocator);
// Every axis that is on.
parallel::ProcessGroups delay(parallel::ProcessGroups groups, Delay kind, Allocator& allocator);

// All delays where each of `num_ranks` ranks has a GPU; elsewhere they would change nothing.
std::vector<Delay> delays_of_ranks(int num_ranks);
const char* delay_name(Delay kind);

}  // namespace grpo::testing
