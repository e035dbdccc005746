// Implements model/core/device_cuda.h and captured_work.h.
#include "tests/fake_cuda/fake_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "model/core/captured_work.h"
#include "model/core/device_cuda.h"
#include "tests/fake_cuda/fake_streams.h"

namespace grpo {
namespace {

constexpr size_t kMemoryBytes = size_t{16}
                                << 30;  // of addresses; pages exist once they are touched
constexpr size_t kAlignmentBytes = 256;

// Tests that do not ask for the device run as on a machine without one.
int initial_device_count() {
  const char* const wanted = std::getenv("GRPO_TEST_DEVICE");
  return wanted != nullptr && std::string_view(wanted) == "cuda" ? 8 : 0;
}

std::atomic<int> device_count{initial_device_count()};

// One memory object, mapped at two places.
class FakeMemory {
 public:
  static FakeMemory& get() {
    static FakeMemory memory;
    return memory;
  }

  void* allocate(size_t size_bytes) {
    const size_t size = (size_bytes / kAlignmentBytes + 1) * kAlignmentBytes;
    const std::lock_guard lock(mutex_);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [offset, available] = *it;
      if (available < size) continue;
      free_.erase(it);
      if (available > size) free_.emplace(offset + size, available - size);
      used_.emplace(offset, size);
      std::memset(host_ + offset, 0, size_bytes);
      return device_ + offset;
    }
    return nullptr;
  }

  void free(void* data) {
    const std::lock_guard lock(mutex_);
    const auto used = used_.find(offset_of(data));
    if (used == used_.end()) return;
    const size_t offset = used->first;
    size_t size = used->second;
    used_.erase(used);
    std::memset(host_ + offset, 0xFF, size);
    const auto next = free_.find(offset + size);
    if (next != free_.end()) {
      size += next->second;
      free_.erase(next);
    }
    const auto after = free_.lower_bound(offset);
    if (after != free_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == offset) {
        before->second += size;
        return;
      }
    }
    free_.emplace(offset, size);
  }

  size_t free_bytes() {
    const std::lock_guard lock(mutex_);
    size_t sum = 0;
    for (const auto& [offset, size] : free_) sum += size;
    return sum;
  }

  std::byte* host_address(const void* data) const { return host_ + offset_of(data); }

 private:
  FakeMemory() {
    const int file = memfd_create("fake_cuda", 0);
    CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(kMemoryBytes)) == 0);
    device_ = map(file, PROT_NONE);
    host_ = map(file, PROT_READ | PROT_WRITE);
    close(file);
    free_.emplace(0, kMemoryBytes);
  }

  static std::byte* map(int file, int protection) {
    void* const data = mmap(nullptr, kMemoryBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    CHECK(data != MAP_FAILED, "no addresses for the fake device's memory");
    return static_cast<std::byte*>(data);
  }

  size_t offset_of(const void* data) const {
    const auto* byte = static_cast<const std::byte*>(data);
    CHECK(byte >= device_ && byte < device_ + kMemoryBytes, "this is no memory of the device");
    return static_cast<size_t>(byte - device_);
  }

  std::mutex mutex_;
  std::byte* device_;
  std::byte* host_;
  std::map<size_t, size_t> free_;  // offset -> size, never neighbours
  std::map<size_t, size_t> used_;
};

}  // namespace

namespace testing {

Tensor on_host(const Tensor& tensor) {
  if (tensor.device().kind != DeviceKind::kCuda) return tensor;
  void* const data =
      tensor.raw() == nullptr ? nullptr : FakeMemory::get().host_address(tensor.raw());
  return Tensor(data, tensor.dtype(), tensor.shape(), Device::cpu());
}

void set_fake_device_count(int count) { device_count = count; }

OpContext& host_context() {
  static Allocator allocator(Device::cpu());
  thread_local Workspace workspace(allocator);
  thread_local OpContext ctx{Device::cpu(), Stream::none(), workspace};
  return ctx;
}

}  // namespace testing

int cuda_device_count() { return device_count; }

void check_cuda_device(Device device) {
  if (device.kind != DeviceKind::kCuda || device.index < 0 || device.index >= device_count) {
    throw CudaError(fmt::format("there is no {}", device_name(device)));
  }
}

CudaDeviceInfo cuda_device_info(Device device) {
  return {"fake device", fmt::format("fake-{}", device.index)};
}

size_t cuda_free_bytes(Device) { return FakeMemory::get().free_bytes(); }

void* cuda_allocate(Device, size_t size_bytes) { return FakeMemory::get().allocate(size_bytes); }

void cuda_free(Device, void* data) noexcept { FakeMemory::get().free(data); }

void cuda_fill_bytes(Device, void* data, int byte, size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  std::byte* const address = FakeMemory::get().host_address(data);
  testing::run_on_stream(stream, [=] { std::memset(address, byte, size_bytes); });
}

void cuda_copy_bytes(void* destination, Device destination_device, const void* source,
                     Device source_device, size_t size_bytes, Stream stream) {
  const auto address = [](const void* data, Device device) {
    return device.kind == DeviceKind::kCuda ? FakeMemory::get().host_address(data)
                                            : static_cast<const std::byte*>(data);
  };
  if (size_bytes == 0) return;
  auto* const to = const_cast<std::byte*>(address(destination, destination_device));
  const std::byte* const from = address(source, source_device);
  testing::run_on_stream(stream, [=] { std::memcpy(to, from, size_bytes); });
  // The host's memory is free again when this returns.
  if (destination_device.kind != source_device.kind) cuda_synchronize(destination_device, stream);
}

struct CapturedWork::State {
  std::function<void(Stream)> work;
};

CapturedWork::CapturedWork(Device, std::function<void(Stream)> work)
    : state_(std::make_unique<State>(State{std::move(work)})) {}

CapturedWork::~CapturedWork() = default;

void CapturedWork::launch(Stream stream) { state_->work(stream); }

}  // namespace grpo
