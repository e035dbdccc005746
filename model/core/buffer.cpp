#include "model/core/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "model/core/device_cuda.h"
#include "model/core/errors.h"

namespace grpo {

namespace {
constexpr size_t kAlignmentBytes = 64;
// From here on the system hands out pages as they are touched: a large reserve that stays unused
// costs nothing.
constexpr size_t kLazyBytes = size_t{32} << 20;

size_t rounded_up(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

// Zero pages; a rehearsal touches only those that the few integers of a batch are written to.
void* map_pages(size_t size_bytes, int more_flags) {
  void* data = mmap(nullptr, rounded_up(size_bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | more_flags, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

bool is_cuda(Device device) { return device.kind == DeviceKind::kCuda && !device.is_rehearsal; }

// Of the CPU or a rehearsal device; null when out of memory.
void* allocate_zeroed(Device device, size_t size_bytes) {
  if (device.is_rehearsal) return map_pages(size_bytes, MAP_NORESERVE);
  if (size_bytes >= kLazyBytes) return map_pages(size_bytes, 0);
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
  void* const data =
      is_cuda(device_) ? cuda_blocks_.allocate(size_bytes) : allocate_zeroed(device_, size_bytes);
  std::lock_guard lock(mutex_);
  if (data == nullptr) {
    const std::string left =
        is_cuda(device_) ? fmt::format("; at most {} would fit", cuda_free_bytes(device_)) : "";
    throw Error(
        ExitCode::kOther,
        fmt::format("out of memory in phase '{}': {} asked for {} bytes on {} beside {} in use{}",
                    phase_, name, size_bytes, device_name(device_), live_bytes_, left));
  }
  live_bytes_ += size_bytes;
  live_by_name_[name] += size_bytes;
  update_peak();
  return Buffer(this, name, data, size_bytes);
}

void Allocator::free(const std::string& name, void* data, size_t size_bytes) noexcept {
  if (is_cuda(device_)) {
    cuda_blocks_.free(data, size_bytes);
  } else if (device_.is_rehearsal || size_bytes >= kLazyBytes) {
    munmap(data, rounded_up(size_bytes));
  } else {
    std::free(data);
  }
  std::lock_guard lock(mutex_);
  live_bytes_ -= size_bytes;
  const auto it = live_by_name_.find(name);
  if (it == live_by_name_.end()) return;
  it->second -= size_bytes;
  if (it->second == 0) live_by_name_.erase(it);
}

void Allocator::set_phase(const std::string& phase) {
  std::lock_guard lock(mutex_);
  phase_ = phase;
  update_peak();
}

void Allocator::update_peak() {
  PhasePeak& peak = peak_by_phase_[phase_];
  if (live_bytes_ <= peak.bytes) return;
  peak.bytes = live_bytes_;
  peak.by_owner = live_by_name_;
}

void Allocator::note_workspace_use(const WorkspaceUse& use) {
  std::lock_guard lock(mutex_);
  WorkspaceUse& most = peak_by_phase_[phase_].workspace;
  if (use.total() > most.total()) most = use;
}

size_t Allocator::live_bytes() const {
  std::lock_guard lock(mutex_);
  return live_bytes_;
}

std::map<std::string, PhasePeak> Allocator::peaks() const {
  std::lock_guard lock(mutex_);
  return peak_by_phase_;
}

std::map<std::string, size_t> Allocator::peak_bytes_by_phase() const {
  std::map<std::string, size_t> bytes;
  for (const auto& [phase, peak] : peaks()) bytes[phase] = peak.bytes;
  return bytes;
}

void poison_memory(void* data, size_t size_bytes, Device device) {
  if (device.is_rehearsal) return;
  if (device.kind == DeviceKind::kCuda) {
    cuda_fill_bytes(device, data, 0xFF, size_bytes, Stream::none());
  } else {
    std::memset(data, 0xFF, size_bytes);
  }
}

}  // namespace grpo
