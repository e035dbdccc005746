// GatherBuffers: reusable full-size buffers for gathered weights and gradients on their way to the
// scatter.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "model/core/buffer.h"

namespace grpo::parallel {

// One thread. A buffer handed out is not handed out again before it is given back, so neighbours of
// the same size never share one. Poisoned while nobody holds it when the allocator says so.
class GatherBuffers {
 public:
  GatherBuffers(Allocator& allocator, std::string name)
      : allocator_(allocator), name_(std::move(name)) {}

  Buffer take(size_t size_bytes);
  void give_back(Buffer buffer);
  // Frees what nobody holds.
  void drop_idle() { free_.clear(); }
  Allocator& allocator() { return allocator_; }

 private:
  Allocator& allocator_;
  std::string name_;
  std::multimap<size_t, Buffer> free_;  // by size
};

}  // namespace grpo::parallel
