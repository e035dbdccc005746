#include "parallel/store/gather_buffers.h"

#include <utility>

namespace grpo::parallel {

Buffer GatherBuffers::take(size_t size_bytes) {
  const auto it = free_.find(size_bytes);
  if (it == free_.end()) {
    Buffer fresh = allocator_.allocate(name_, size_bytes);
    if (allocator_.poison_scratch()) poison_memory(fresh.data(), size_bytes, fresh.device());
    return fresh;
  }
  Buffer buffer = std::move(it->second);
  free_.erase(it);
  return buffer;
}

void GatherBuffers::give_back(Buffer buffer) {
  if (allocator_.poison_scratch()) {
    poison_memory(buffer.data(), buffer.size_bytes(), buffer.device());
  }
  const size_t size_bytes = buffer.size_bytes();
  free_.emplace(size_bytes, std::move(buffer));
}

}  // namespace grpo::parallel
