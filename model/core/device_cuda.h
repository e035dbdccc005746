// Memory and presence of CUDA devices, for code that does not see CUDA's headers. A build without
// CUDA has no devices, and every other call throws CudaError. Thread-safe: each call selects its
// device for the calling thread.
//
// A null stream is the device's default stream.
#pragma once

#include <cstddef>
#include <string>

#include "model/core/device.h"

namespace grpo {

// 0 when this build has no CUDA or the machine has no driver or device that it can use;
// check_cuda_device says why.
int cuda_device_count();

// Throws CudaError unless this build's kernels run on the device: no CUDA in this build, no driver,
// a driver older than the CUDA runtime, no such device, or a compute capability this build holds no
// code for.
void check_cuda_device(Device device);

struct CudaDeviceInfo {
  std::string name;      // "NVIDIA H200"
  std::string identity;  // the same in every process that sees this device, and of no other device
};

CudaDeviceInfo cuda_device_info(Device device);

// What no process has allocated on the device.
size_t cuda_free_bytes(Device device);

// Zero-filled memory aligned to 256 bytes; null when the device has none left.
void* cuda_allocate(Device device, size_t size_bytes);
void cuda_free(Device device, void* data) noexcept;

// Sets every byte, in stream order.
void cuda_fill_bytes(Device device, void* data, int byte, size_t size_bytes, Stream stream);

// Between two places of which at least one is a CUDA device, in order of the stream, which belongs
// to that device (the destination's, if both are). When the call returns, what goes to the CPU is
// there; what comes from it may still be on its way, but `source` is read.
void cuda_copy_bytes(void* destination, Device destination_device, const void* source,
                     Device source_device, size_t size_bytes, Stream stream);

// Waits for everything given to the stream; throws CudaError when a part of it failed.
void cuda_synchronize(Device device, Stream stream);

// A stream that runs beside all others: events order it with them.
Stream cuda_create_stream(Device device);
void cuda_destroy_stream(Device device, Stream stream) noexcept;

// An event marks the place in a stream where it was last recorded.
void* cuda_create_event(Device device);
void cuda_destroy_event(Device device, void* event) noexcept;
void cuda_record_event(Device device, void* event, Stream stream);
// What the stream is given from here on waits for the event's place.
void cuda_wait_event(Device device, Stream stream, void* event);
// True when everything before the event's place is done.
bool cuda_event_is_done(Device device, void* event);

}  // namespace grpo
