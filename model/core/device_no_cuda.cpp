// Stands in for the *_cuda.cu files in builds without CUDA.
#include "model/core/captured_work.h"
#include "model/core/device_cuda.h"
#include "model/core/errors.h"

namespace grpo {

namespace {

[[noreturn]] void throw_no_cuda(Device device) {
  throw CudaError(
      fmt::format("this build has no CUDA, wanted for {}; configure it with GRPO_CUDA=ON",
                  device_name(device)));
}

}  // namespace

int cuda_device_count() { return 0; }

void check_cuda_device(Device device) { throw_no_cuda(device); }

CudaDeviceInfo cuda_device_info(Device device) { throw_no_cuda(device); }

size_t cuda_free_bytes(Device device) { throw_no_cuda(device); }

void* cuda_allocate(Device device, size_t) { throw_no_cuda(device); }

void cuda_free(Device, void*) noexcept {}  // nothing was allocated

void cuda_fill_bytes(Device device, void*, int, size_t, Stream) { throw_no_cuda(device); }

void cuda_copy_bytes(void*, Device destination_device, const void*, Device source_device, size_t,
                     Stream) {
  throw_no_cuda(destination_device.kind == DeviceKind::kCuda ? destination_device : source_device);
}

void cuda_synchronize(Device device, Stream) { throw_no_cuda(device); }

Stream cuda_create_stream(Device device) { throw_no_cuda(device); }

void cuda_destroy_stream(Device, Stream) noexcept {}  // none was made

void* cuda_create_event(Device device) { throw_no_cuda(device); }

void cuda_destroy_event(Device, void*) noexcept {}  // none was made

void cuda_record_event(Device device, void*, Stream) { throw_no_cuda(device); }

void cuda_wait_event(Device device, Stream, void*) { throw_no_cuda(device); }

bool cuda_event_is_done(Device device, void*) { throw_no_cuda(device); }

struct CapturedWork::State {};

CapturedWork::CapturedWork(Device device, std::function<void(Stream)>) { throw_no_cuda(device); }

CapturedWork::~CapturedWork() = default;

void CapturedWork::launch(Stream) {}  // nothing was recorded

}  // namespace grpo
