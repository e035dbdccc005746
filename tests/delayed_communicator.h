// A communicator whose collectives come late, or behind late work: what misses a wait between
// streams then reads or overwrites the wrong bytes.
#pragma once

#include <memory>
#include <vector>

#include "model/core/buffer.h"
#include "model/core/communicator.h"
#include "parallel/layout/process_groups.h"

namespace grpo::testing {

enum class Delay {
  kNone,
  kCommunication,  // the stream of each collective is busy for a while before it
  kWork            // the default stream is, when a collective is queued
};

// On the CPU, and on the fake device, nothing is late. The allocator outlives the result.
std::shared_ptr<Communicator> delay(std::shared_ptr<Communicator> communicator, Delay kind,
                                    Allocator& allocator);
// The same of the axes tp, gtp_remat and dp that have peers.
parallel::ProcessGroups delay(parallel::ProcessGroups groups, Delay kind, Allocator& allocator);

// The delays that differ on so many ranks: kNone alone where nothing is late.
std::vector<Delay> delays_for(int num_ranks);
const char* delay_name(Delay kind);  // "late_communication"; empty for kNone

// Makes the work that follows late, where the kind says so.
class LateWork {
 public:
  LateWork(Delay kind, Allocator& allocator);
  // Occupies the default stream for a while.
  void queue() const;

 private:
  Buffer busy_;  // empty when nothing is late
};

}  // namespace grpo::testing
