#include "model/core/device_cuda.h"

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "model/core/cuda_check.h"
#include "model/core/errors.h"

namespace grpo {

namespace {

// Never launched: the loader finds code for it exactly on the devices that this build has kernels
// for.
__global__ void probe_kernel() {}

constexpr int kBuiltArchitectures[] = {__CUDA_ARCH_LIST__};  // 900 is compute capability 9.0

std::string built_architectures() {
  std::string text;
  for (const int architecture : kBuiltArchitectures) {
    text += fmt::format("{}{}.{}", text.empty() ? "" : ", ", architecture / 100,
                        architecture / 10 % 10);
  }
  return text;
}

// CUDA's 12040 is 12.4.
std::string version_name(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

[[noreturn]] void throw_without_devices(cudaError_t error) {
  int driver = 0;
  int runtime = 0;
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  if (driver == 0) throw CudaError("no CUDA driver is installed on this machine");
  if (error == cudaErrorInsufficientDriver) {
    throw CudaError(
        fmt::format("the driver of this machine knows CUDA up to {}, this build needs {}",
                    version_name(driver), version_name(runtime)));
  }
  throw CudaError(
      fmt::format("no CUDA device: {} ({})", cudaGetErrorName(error), cudaGetErrorString(error)));
}

void select(Device device) {
  CHECK(device.kind == DeviceKind::kCuda, "{} is no CUDA device", device_name(device));
  CUDA_CHECK(cudaSetDevice(device.index));
}

// Page-locked memory through which what is small goes to one device and back: to it without a wait
// for the stream, back without the driver's own staging. Thread-safe.
class PinnedRing {
 public:
  static constexpr size_t kSlotBytes = size_t{256} << 10;

  // Of the selected device. Never destroyed: it would outlive CUDA.
  static PinnedRing& of(Device device) {
    static std::mutex mutex;
    static auto* const rings = new std::map<int, PinnedRing>;
    const std::lock_guard lock(mutex);
    return (*rings)[device.index];
  }

  void upload(void* destination, const void* source, size_t size_bytes, cudaStream_t stream) {
    const Claim claim = claim_slot();
    std::memcpy(claim.slot.data, source, size_bytes);
    CUDA_CHECK(
        cudaMemcpyAsync(destination, claim.slot.data, size_bytes, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaEventRecord(claim.slot.is_read, stream));
  }

  void download(void* destination, const void* source, size_t size_bytes, cudaStream_t stream) {
    const Claim claim = claim_slot();
    CUDA_CHECK(
        cudaMemcpyAsync(claim.slot.data, source, size_bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    std::memcpy(destination, claim.slot.data, size_bytes);
  }

 private:
  struct Slot {
    std::mutex mutex;
    void* data = nullptr;
    cudaEvent_t is_read = nullptr;  // by the last upload
  };
  struct Claim {
    Slot& slot;
    std::unique_lock<std::mutex> lock;
  };

  // A slot that no thread uses, once its last upload is done.
  Claim claim_slot() {
    for (;;) {
      Slot& slot = slots_[next_++ % slots_.size()];
      std::unique_lock lock(slot.mutex, std::try_to_lock);
      if (!lock.owns_lock()) continue;
      if (slot.data == nullptr) {
        CUDA_CHECK(cudaEventCreateWithFlags(&slot.is_read, cudaEventDisableTiming));
        CUDA_CHECK(cudaHostAlloc(&slot.data, kSlotBytes, cudaHostAllocDefault));
      }
      CUDA_CHECK(cudaEventSynchronize(slot.is_read));
      return {slot, std::move(lock)};
    }
  }

  std::array<Slot, 16> slots_;
  std::atomic<size_t> next_ = 0;
};

}  // namespace

void throw_cuda_error(const char* file, int line, const char* call, cudaError_t error) {
  throw CudaError(fmt::format("{}:{}: {} failed: {} ({})", file, line, call,
                              cudaGetErrorName(error), cudaGetErrorString(error)));
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // forget it: having no device is no failure of a later call
    return 0;
  }
  return count;
}

void check_cuda_device(Device device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw_without_devices(error);
  }
  if (device.kind != DeviceKind::kCuda || device.index < 0 || device.index >= count) {
    throw CudaError(fmt::format("there is no {}: this machine has {} CUDA devices",
                                device_name(device), count));
  }
  select(device);
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, probe_kernel) != cudaSuccess) {
    cudaGetLastError();
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index));
    throw CudaError(
        fmt::format("{} ({}) has compute capability {}.{}; this build holds kernels for {} "
                    "(CMAKE_CUDA_ARCHITECTURES)",
                    device_name(device), properties.name, properties.major, properties.minor,
                    built_architectures()));
  }
}

CudaDeviceInfo cuda_device_info(Device device) {
  select(device);
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index));
  std::string uuid;
  for (const char byte : properties.uuid.bytes) {
    uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return {properties.name, "GPU-" + uuid};
}

size_t cuda_free_bytes(Device device) {
  select(device);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return free_bytes;
}

void* cuda_allocate(Device device, size_t size_bytes) {
  select(device);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, size_bytes == 0 ? 1 : size_bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the caller reports it, with what it knows of owner and phase
    return nullptr;
  }
  if (error != cudaSuccess) throw_cuda_error(__FILE__, __LINE__, "cudaMalloc", error);
  try {
    cuda_fill_bytes(device, data, 0, size_bytes, Stream::none());
  } catch (...) {
    cuda_free(device, data);
    throw;
  }
  return data;
}

// Errors are dropped: one of an earlier kernel shows again at the next checked call.
void cuda_free(Device device, void* data) noexcept {
  cudaSetDevice(device.index);
  cudaFree(data);
}

void cuda_fill_bytes(Device device, void* data, int byte, size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  select(device);
  CUDA_CHECK(cudaMemsetAsync(data, byte, size_bytes, cuda_stream(stream)));
}

void cuda_copy_bytes(void* destination, Device destination_device, const void* source,
                     Device source_device, size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  const bool to_device = destination_device.kind == DeviceKind::kCuda;
  const bool from_device = source_device.kind == DeviceKind::kCuda;
  select(to_device ? destination_device : source_device);
  if (to_device && from_device && destination_device != source_device) {
    CUDA_CHECK(cudaMemcpyPeerAsync(destination, destination_device.index, source,
                                   source_device.index, size_bytes, cuda_stream(stream)));
    return;
  }
  if (to_device != from_device && size_bytes <= PinnedRing::kSlotBytes) {
    PinnedRing& ring = PinnedRing::of(to_device ? destination_device : source_device);
    if (to_device) {
      ring.upload(destination, source, size_bytes, cuda_stream(stream));
    } else {
      ring.download(destination, source, size_bytes, cuda_stream(stream));
    }
    return;
  }
  CUDA_CHECK(
      cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDefault, cuda_stream(stream)));
  if (!to_device || !from_device) CUDA_CHECK(cudaStreamSynchronize(cuda_stream(stream)));
}

void cuda_synchronize(Device device, Stream stream) {
  select(device);
  CUDA_CHECK(cudaStreamSynchronize(cuda_stream(stream)));
}

Stream cuda_create_stream(Device device) {
  select(device);
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {stream};
}

void cuda_destroy_stream(Device device, Stream stream) noexcept {
  cudaSetDevice(device.index);
  cudaStreamDestroy(cuda_stream(stream));
}

void* cuda_create_event(Device device) {
  select(device);
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void cuda_destroy_event(Device device, void* event) noexcept {
  cudaSetDevice(device.index);
  cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

void cuda_record_event(Device device, void* event, Stream stream) {
  select(device);
  CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event), cuda_stream(stream)));
}

void cuda_wait_event(Device device, Stream stream, void* event) {
  select(device);
  CUDA_CHECK(cudaStreamWaitEvent(cuda_stream(stream), static_cast<cudaEvent_t>(event), 0));
}

bool cuda_event_is_done(Device device, void* event) {
  select(device);
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // no failure of a later call
    return false;
  }
  if (state != cudaSuccess) throw_cuda_error(__FILE__, __LINE__, "cudaEventQuery", state);
  return true;
}

}  // namespace grpo
