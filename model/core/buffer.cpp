#include "model/core/buffer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "model/core/device_cuda.h"
#include "model/core/errors.h"

namespace grpo {

namespace {
constexpr size_t kAlignmentBytes = 64;

size_t rounded_up(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

// Null when out of memory.
void* allocate_zeroed(Device device, size_t size_bytes) {
  if (device.kind == DeviceKind::kCuda) return cuda_allocate(device, size_bytes);
  void* data = std::aligned_alloc(kAlignmentBytes, rounded_up(size_bytes));
  if (data != nullptr) std::memset(data, 0, rounded_up(size_bytes));
  return data;
}
}  // namespace

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    allocator_ = std::exchange(other.allocator_, nullptr);
    name_ = std::move(other.name_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

Buffer::~Buffer() { release(); }

Device Buffer::device() const {
  CHECK(allocator_ != nullptr, "empty buffer has no device");
  return allocator_->device();
}

void Buffer::release() noexcept {
  if (data_ != nullptr) allocator_->free(name_, data_, size_bytes_);
  data_ = nullptr;
}

Buffer Allocator::allocate(const std::string& name, size_t size_bytes) {
  void* const data = allocate_zeroed(device_, size_bytes);
  std::lock_guard lock(mutex_);
  if (data == nullptr) {
    throw Error(
        ExitCode::kOther,
        fmt::format("out of memory in phase '{}': {} asked for {} bytes on {} beside {} in use",
                    phase_, name, size_bytes, device_name(device_), live_bytes_));
  }
  live_bytes_ += size_bytes;
  live_by_name_[name] += size_bytes;
  size_t& peak = peak_by_phase_[phase_];
  peak = std::max(peak, live_bytes_);
  return Buffer(this, name, data, size_bytes);
}

void Allocator::free(const std::string& name, void* data, size_t size_bytes) noexcept {
  if (device_.kind == DeviceKind::kCuda) {
    cuda_free(device_, data);
  } else {
    std::free(data);
  }
  std::lock_guard lock(mutex_);
  live_bytes_ -= size_bytes;
  const auto it = live_by_name_.find(name);
  if (it != live_by_name_.end() && (it->second -= size_bytes) == 0) live_by_name_.erase(it);
}

void Allocator::set_phase(const std::string& phase) {
  std::lock_guard lock(mutex_);
  phase_ = phase;
  size_t& peak = peak_by_phase_[phase_];
  peak = std::max(peak, live_bytes_);
}

size_t Allocator::live_bytes() const {
  std::lock_guard lock(mutex_);
  return live_bytes_;
}

std::map<std::string, size_t> Allocator::live_bytes_by_name() const {
  std::lock_guard lock(mutex_);
  return live_by_name_;
}

std::map<std::string, size_t> Allocator::peak_bytes_by_phase() const {
  std::lock_guard lock(mutex_);
  return peak_by_phase_;
}

void poison_memory(void* data, size_t size_bytes, Device device) {
  if (device.kind == DeviceKind::kCuda) {
    cuda_fill_bytes(device, data, 0xFF, size_bytes, Stream::none());
  } else {
    std::memset(data, 0xFF, size_bytes);
  }
}

}  // namespace grpo
