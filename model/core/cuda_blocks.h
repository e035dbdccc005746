// Memory blocks of a CUDA device that are kept for reuse: what a step allocates and frees again
// costs no call that stops the device.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "model/core/device.h"

namespace grpo {

// Thread-safe. A block goes to its next owner in the order of the default stream, for which all
// streams of this program wait. Large blocks are not kept, nor more than kMaxIdleBytes.
class CudaBlocks {
 public:
  static constexpr size_t kLargestKeptBytes = size_t{64} << 20;
  static constexpr size_t kMaxIdleBytes = size_t{512} << 20;

  explicit CudaBlocks(Device device) : device_(device) {}
  ~CudaBlocks() { drop_idle(); }
  CudaBlocks(const CudaBlocks&) = delete;
  CudaBlocks& operator=(const CudaBlocks&) = delete;

  // Zero-filled; null when the device has no more, also without what is kept.
  void* allocate(size_t size_bytes);
  // `size_bytes` as allocated.
  void free(void* data, size_t size_bytes) noexcept;

  size_t idle_bytes() const;

 private:
  void* take_idle(size_t block_bytes);
  void drop_idle() noexcept;

  Device device_;
  mutable std::mutex mutex_;
  std::multimap<size_t, void*> idle_;  // by size
  size_t idle_bytes_ = 0;
};

}  // namespace grpo
