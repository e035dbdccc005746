// A communicator whose collectives come late, or behind late work: what misses a wait between
// streams then reads or overwrites the wrong bytes.
#pragma once

#include <memory>

#include "model/core/buffer.h"
#include "model/core/communicator.h"

namespace grpo::testing {

enum class Delay {
  kNone,
  kCommunication,  // the stream of each collective is busy for a while before it
  kWork            // the default stream is, when a collective is queued
};

// On the CPU, and on the fake device, nothing is late. The allocator outlives the result.
std::shared_ptr<Communicator> delay(std::shared_ptr<Communicator> communicator, Delay kind,
                                    Allocator& allocator);

}  // namespace grpo::testing
