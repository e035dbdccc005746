#include "model/core/cuda_blocks.h"

#include <algorithm>
#include <bit>

#include "model/core/device_cuda.h"

namespace grpo {

namespace {

// Sizes that are near each other share blocks: at most an eighth is wasted.
size_t block_bytes(size_t size_bytes) {
  if (size_bytes > CudaBlocks::kLargestKeptBytes) return size_bytes;
  const size_t step = std::max<size_t>(512, std::bit_floor(size_bytes) / 8);
  return (std::max<size_t>(size_bytes, 1) + step - 1) / step * step;
}

}  // namespace

void* CudaBlocks::allocate(size_t size_bytes) {
  const size_t bytes = block_bytes(size_bytes);
  if (void* const idle = take_idle(bytes)) {
    cuda_fill_bytes(device_, idle, 0, bytes, Stream::none());
    return idle;
  }
  void* const fresh = cuda_allocate(device_, bytes);
  if (fresh != nullptr || idle_bytes() == 0) return fresh;
  drop_idle();
  return cuda_allocate(device_, bytes);
}

void* CudaBlocks::take_idle(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto it = idle_.find(bytes);
  if (it == idle_.end()) return nullptr;
  void* const data = it->second;
  idle_.erase(it);
  idle_bytes_ -= bytes;
  return data;
}

void CudaBlocks::free(void* data, size_t size_bytes) noexcept {
  const size_t bytes = block_bytes(size_bytes);
  {
    const std::lock_guard lock(mutex_);
    if (bytes <= kLargestKeptBytes && idle_bytes_ + bytes <= kMaxIdleBytes) {
      idle_.emplace(bytes, data);
      idle_bytes_ += bytes;
      return;
    }
  }
  cuda_free(device_, data);
}

void CudaBlocks::drop_idle() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [bytes, data] : idle_) cuda_free(device_, data);
  idle_.clear();
  idle_bytes_ = 0;
}

size_t CudaBlocks::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return idle_bytes_;
}

}  // namespace grpo
